"use strict";
// Tables that sort, filter and fold. The server made them complete: nothing is drawn here.
// Until `signal`, if there is one, the page listens.
function startPage(signal) {
  const root = document.querySelector(".gradscope");
  const tools = document.getElementById("tools");
  const filter = document.getElementById("filter");
  const depth = document.getElementById("depth");
  const tables = [...root.querySelectorAll("table")].map(read).filter((table) => table.named);
  const UNITS = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ms: 1e-3, "µs": 1e-6 };

  // A table as entries: a row with those that go on with it.
  function read(table) {
    const body = table.tBodies[0];
    const entries = [];
    for (const row of body.rows) {
      if (entries.length && !row.dataset.n && entries[0].name) entries.at(-1).rows.push(row);
      else entries.push({ rows: [row], name: row.dataset.n || "", folded: false });
    }
    for (const entry of entries) {
      const place = entry.name.replace(/ #.*/, "");
      entry.path = place === "(root)" ? [] : place.split(".");
    }
    const made = { body, entries, named: entries.some((entry) => entry.name) };
    [...table.tHead.rows[0].cells].forEach((cell, i) => sortable(made, cell, i));
    return made;
  }

  function sortable(table, cell, i) {
    if (!cell.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell.textContent;
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const now = cell.getAttribute("aria-sort");
      for (const other of cell.parentNode.cells) other.removeAttribute("aria-sort");
      const words = cell.classList.contains("l") && !/shape/.test(button.textContent);
      const turn = words ? { null: "ascending", ascending: "descending" } : { null: "descending", descending: "ascending" };
      if (turn[now]) cell.setAttribute("aria-sort", turn[now]);
      const up = turn[now] === "ascending" ? 1 : -1;
      const key = (entry) => (words ? word(entry, entry.rows[0].cells[i]) : most(entry.rows, i));
      const keys = new Map(table.entries.map((entry) => [entry, key(entry)]));
      const order = [...table.entries];
      if (turn[now]) {
        order.sort((a, b) => {
          const [x, y] = [keys.get(a), keys.get(b)];
          if (words) return up * x.localeCompare(y, undefined, { numeric: true });
          if (x === null || y === null) return (x === null) - (y === null);
          return up * (x - y);
        });
      }
      table.body.append(...order.flatMap((entry) => entry.rows));
    });
  }

  const word = (entry, cell) => (cell.tagName === "TH" && entry.name) || cell.textContent;

  function most(rows, i) {
    const known = rows.map((row) => rank(row.cells[i].textContent)).filter((x) => x !== null);
    return known.length ? Math.max(...known) : null;
  }

  // What a cell counts as: a shape is its elements, of a course or a span the last number counts.
  function rank(text) {
    const shape = /^\[([\d, ]*)\]$/.exec(text);
    if (shape) return shape[1].split(",").reduce((product, size) => product * Number(size || 1), 1);
    const found = text.split(/→|…/).at(-1).replaceAll(",", "").match(/^\s*([<>]?)([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|inf))\s*(\S*)/);
    if (!found) return null;
    const number = found[2].endsWith("inf") ? (found[2][0] === "-" ? -Infinity : Infinity) : Number(found[2]);
    return number * (UNITS[found[3]] || 1) + (found[1] === "<" ? -1e-9 : found[1] === ">" ? 1e-9 : 0);
  }

  // The patterns of -l: `*` within a part of the name, `**` any number of parts; else a piece of it.
  function matcher(text) {
    if (!text) return () => true;
    if (!text.includes("*")) return (name) => name.toLowerCase().includes(text.toLowerCase());
    const parts = text.split(".").map((part) => (part === "**" ? null : part.replace(/[+?^${}()|[\]\\]/g, "\\$&").replaceAll("*", "[^.]*")));
    const last = parts.length - 1;
    const source = parts.map((part, i) => {
      if (part === null) return i < last ? "(?:.+\\.)?" : last ? "(?:\\..+)?" : ".*";
      return i === last || (i + 1 === last && parts[last] === null) ? part : `${part}\\.`;
    });
    const pattern = new RegExp(`^${source.join("")}$`);
    return (name) => pattern.test(name);
  }

  function show() {
    const matches = matcher(filter.value.trim());
    const deepest = depth.value === "" ? Infinity : Number(depth.value);
    let seen = 0, all = 0;
    for (const { entries } of tables) {
      const folded = entries.filter((entry) => entry.folded).map((entry) => entry.path);
      for (const entry of entries) {
        const inside = folded.some((path) => path.length < entry.path.length && path.every((part, i) => part === entry.path[i]));
        const hidden = inside || entry.path.length > deepest || !matches(entry.path.join("."));
        for (const row of entry.rows) row.hidden = hidden;
        all += 1;
        seen += !hidden;
      }
    }
    document.getElementById("shown").textContent = seen < all ? `${seen.toLocaleString()} of ${all.toLocaleString()} rows` : "";
  }

  // A button before each row that has others below it.
  function foldable({ entries }) {
    const owners = new Set();
    for (const { path } of entries) for (let i = 0; i < path.length; i++) owners.add(path.slice(0, i).join("."));
    for (const entry of entries) {
      if (!entry.name || !owners.has(entry.path.join("."))) continue;
      const button = document.createElement("button");
      const draw = () => {
        button.textContent = entry.folded ? "▸" : "▾";
        button.setAttribute("aria-expanded", String(!entry.folded));
      };
      button.type = "button";
      button.className = "fold";
      button.setAttribute("aria-label", `rows below ${entry.name}`);
      button.addEventListener("click", () => {
        entry.folded = !entry.folded;
        draw();
        show();
      });
      draw();
      entry.rows[0].querySelector("th").prepend(button);
    }
  }

  // A link to a row that is hidden shows it.
  function reveal() {
    const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!row || !row.hidden) return;
    filter.value = depth.value = "";
    for (const { entries } of tables) for (const entry of entries) entry.folded = false;
    for (const button of root.querySelectorAll(".fold")) {
      button.textContent = "▾";
      button.setAttribute("aria-expanded", "true");
    }
    show();
    row.scrollIntoView();
  }

  // A chart as wide as the page.
  for (const figure of root.querySelectorAll(".charts figure")) {
    const caption = figure.querySelector("figcaption");
    if (!caption) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "enlarge";
    button.textContent = "larger";
    button.setAttribute("aria-label", `larger: ${caption.textContent.trim()}`);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      const large = figure.classList.toggle("large");
      button.setAttribute("aria-pressed", String(large));
      if (large) figure.scrollIntoView({ block: "nearest" });
    });
    caption.append(" ", button);
  }

  if (!tables.length) return;
  const deepest = Math.max(...tables.flatMap(({ entries }) => entries.map(({ path }) => path.length)));
  for (let i = 0; i < deepest; i++) depth.add(new Option(String(i), String(i)));
  depth.parentElement.hidden = deepest < 2;
  tables.forEach(foldable);
  root.classList.add("scripted");
  tools.hidden = false;
  filter.addEventListener("input", show);
  depth.addEventListener("change", show);
  addEventListener("hashchange", reveal, { signal });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target === filter || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    filter.focus();
  }, { signal });
  reveal();
}
