"use strict";
// Maps can be walked through by the arrow keys; all else works without a script.
for (const region of document.querySelectorAll("[data-map]")) {
  const id = region.dataset.map;
  const data = JSON.parse(document.getElementById(id + "-data").textContent);
  const live = document.getElementById(id + "-live");
  const svg = region.querySelector("svg");
  const cursor = svg.querySelector(".cursor");
  const last = { row: data.rows.length - 1, column: data.columns.length - 1 };
  let row = 0, column = last.column;
  region.setAttribute("role", "application");
  region.setAttribute("aria-roledescription", "map of calls");
  region.setAttribute("aria-describedby", id + "-d " + id + "-live");
  const hint = "Arrow keys go from cell to cell, Home and End to the first and the last call, N to the next cell that is not as most.";
  live.textContent = hint;
  const words = () => {
    const [first, end] = data.columns[column];
    const calls = first === end ? `call ${first}` : `calls ${first} to ${end}`;
    const text = data.texts[data.told[row][column]];
    return `${data.rows[row]}, ${calls} on ${data.group}: ${data.words[Number(data.cells[row][column])]}${text ? " (" + text + ")" : ""}.`;
  };
  const show = (follow) => {
    const x = data.xs[column], y = data.ys[row];
    const bottom = row === last.row ? data.bottom : data.ys[row + 1];
    for (const [name, value] of [["x", x], ["y", y], ["width", data.xs[column + 1] - x], ["height", bottom - y]]) cursor.setAttribute(name, value);
    cursor.setAttribute("visibility", "visible");
    live.textContent = words();
    if (follow) {
      const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      const at = (x - svg.viewBox.baseVal.x) * scale;
      if (at < region.scrollLeft + 60 || at > region.scrollLeft + region.clientWidth - 60) region.scrollLeft = at - region.clientWidth / 2;
    }
  };
  const unusual = () => {
    const wide = data.columns.length, count = wide * data.rows.length;
    for (let step = 1; step <= count; step++) {
      const at = (row * wide + column + step) % count;
      if (Number(data.cells[Math.floor(at / wide)][at % wide]) > 1) {
        row = Math.floor(at / wide);
        column = at % wide;
        return;
      }
    }
  };
  const moves = {
    ArrowLeft: () => { column = Math.max(0, column - 1); },
    ArrowRight: () => { column = Math.min(last.column, column + 1); },
    ArrowUp: () => { row = Math.max(0, row - 1); },
    ArrowDown: () => { row = Math.min(last.row, row + 1); },
    Home: () => { column = 0; },
    End: () => { column = last.column; },
    PageUp: () => { row = 0; },
    PageDown: () => { row = last.row; },
    n: unusual,
  };
  region.addEventListener("keydown", (event) => {
    const move = moves[event.key] || moves[event.key.toLowerCase()];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move();
    show(true);
  });
  svg.addEventListener("click", (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    if (point.x < 0 || point.x >= data.xs[last.column + 1] || point.y < 0 || point.y >= data.bottom) return;
    column = data.xs.findLastIndex((x) => x <= point.x);
    row = data.ys.findLastIndex((y) => y <= point.y);
    show(false);
  });
}
// On paper nothing is folded.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
  folded = [];
});
