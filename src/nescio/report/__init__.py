"""Rows in; tables, figures and one offline page out: rows → Frame → table and figure specifications → files.

Nothing here imports Altair, Jinja2, pandas or torch before a page or a figure is written.
"""
