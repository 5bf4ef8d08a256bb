(() => {
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const light = JSON.parse(document.getElementById("light").textContent);
const views = {};

const draw = async holder => {
  const key = holder.dataset.figure;
  if (key in views || holder.closest("details:not([open]), [hidden]")) return;
  views[key] = null;
  const {view} = await vegaEmbed(holder, figures[key],
    {mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, tooltip: {disableDefaultStyle: true}});
  views[key] = view;
  const select = document.querySelector(`select[data-charts~="${key}"]`);
  if (select) await choose(view, select.value);
};

const choose = (view, value) => view.signal("chosen", value).runAsync();
const drawAll = within => within.querySelectorAll(".chart").forEach(draw);

const follow = select => {
  for (const key of select.dataset.charts.split(" ")) if (views[key]) choose(views[key], select.value);
  const part = select.closest("section, details.model");
  for (const row of part.querySelectorAll("tr[data-measure]"))
    row.classList.toggle("chosen", row.dataset.measure === select.value);
};

const save = async key => {
  if (!views[key]) return;
  const svg = (await views[key].toSVG()).replace(/var\(--([\w-]+)\)/g, (all, name) => light[name] || all);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([svg], {type: "image/svg+xml"}));
  link.download = key + ".svg";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

for (const select of document.querySelectorAll("select[data-charts]")) {
  select.addEventListener("change", () => follow(select));
  follow(select);
}
for (const button of document.querySelectorAll(".save"))
  button.addEventListener("click", () => save(button.dataset.figure));
for (const fold of document.querySelectorAll("details"))
  fold.addEventListener("toggle", () => { if (fold.open) drawAll(fold); });
for (const select of document.querySelectorAll("select.turn")) {
  const panes = select.closest(".panes");
  const turn = () => {
    for (const pane of panes.querySelectorAll(":scope > .pane")) pane.hidden = pane.dataset.pane !== select.value;
    drawAll(panes);
  };
  select.addEventListener("change", turn);
  turn();
}
const show = () => {
  const model = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (model && model.tagName === "DETAILS") { model.open = true; model.scrollIntoView(); }
};
addEventListener("hashchange", show);
show();
drawAll(document);
})();
