"""Charts, all built of the same parts: scales, axes, legends, guide lines and tooltips.

A plug-in builds further charts from `parts` and `style`: `finish(layers, description)` of layers made with `data`,
`number_axis`, `Series` and `tooltips`.
"""
