/* The side panel: everything known of the selected operation, leaf or group. All text is set with
   textContent: names come from the model and are not trusted. */

const panel = (() => {
  const root = document.getElementById("panel");
  const MOST = 40; // rows of one list
  const go = { to: () => {}, toggle: () => {} };

  function make(tag, text = "", className = "") {
    const element = document.createElement(tag);
    element.textContent = text;
    if (className) element.className = className;
    return element;
  }

  function facts(rows) {
    const list = make("dl");
    for (const [name, value] of rows) {
      if (value === null || value === undefined || value === "") continue;
      list.append(make("dt", name), make("dd", String(value)));
    }
    return list;
  }

  function jump(thing, note = "") {
    const row = make("li");
    const button = make("button", thing.own ? `${thing.own.label} (${thing.op})` : words.title(thing), "link");
    button.type = "button";
    button.addEventListener("click", () => go.to(thing));
    row.append(button, make("span", note ? ` ${note}` : ""));
    return row;
  }

  /* A list of places to go to: [thing, note], equal ones counted. */
  function places(heading, things) {
    if (!things.length) return [];
    const list = make("ul");
    for (const [thing, note] of things.slice(0, MOST)) list.append(jump(thing, note));
    if (things.length > MOST) list.append(make("li", `and ${words.count(things.length - MOST)} more`));
    return [make("h3", heading), list];
  }

  const module = (node) => (node.call === undefined ? "outside every module" : words.callName(node.call));

  function reason(thing) {
    switch (words.gradientState(thing)) {
      case "missing": return "none: no gradient reached it in backward";
      case "zero": return "0: a gradient arrived, and all of it is zero";
      default: return words.number(thing.norm);
    }
  }

  function operation(node) {
    const leaf = model.isLeaf(node);
    const kind = leaf ? { parameter: "parameter", input: "input" }[node.kind] : "operation";
    return [
      make("h2", words.title(node)), make("p", kind, "kind"),
      facts([
        ["module", node.call === undefined && leaf ? null : module(node)],
        ["module's class", node.call === undefined ? null : model.data.calls[node.call][2]],
        ["accumulated by", leaf ? node.op : null],
        ["shape", words.shape(node.shape)],
        ["gradient norm", node.kind === "bundle" ? `${reason(node)} (where it enters)` : reason(node)],
        ["NaN or Inf in it", node.bad > 0 ? words.count(node.bad) : null],
        ["saved for backward", leaf ? null : words.bytes(node.bytes)],
        ["made at", node.at],
        ["number", node.kind === "bundle" ? null : node.id],
      ]),
      ...leaves(node), ...savedTensors(node), ...neighbours(node),
    ];
  }

  function leaves(node) {
    if (node.kind === "bundle") return leafNames(node.names ?? []);
    const rows = node.leaves.map((leaf) => [leaf, `${words.shape(leaf.shape)} ${words.gradientWords(leaf)}`]);
    return places("Parameters and inputs", rows);
  }

  /* Of operations that are only counted, the names alone are known. */
  function leafNames(names) {
    if (!names.length) return [];
    const more = names.length - 30;
    const shown = names.slice(0, 30).join(", ") + (more > 0 ? ` and ${words.count(more)} more` : "");
    return [make("h3", "Parameters and inputs"), make("p", shown)];
  }

  function savedTensors(node) {
    if (!node.saved?.length) return [];
    const table = make("table");
    const head = make("tr");
    for (const name of ["tensor", "shape", "dtype", "memory"]) {
      const cell = make("th", name);
      cell.scope = "col";
      head.append(cell);
    }
    table.append(head);
    for (const [name, shape, dtype, bytes] of node.saved.slice(0, MOST)) {
      const row = make("tr");
      const memory = bytes === 0 ? "of a parameter" : words.bytes(bytes);
      for (const cell of [name, words.shape(shape), dtype, memory]) row.append(make("td", cell));
      table.append(row);
    }
    return [make("h3", "Saved for backward"), table];
  }

  function neighbours(node) {
    const before = model.consumers.get(node.id).map((id) => near(model.nodes.get(id)));
    const after = node.on.map((id) => model.nodes.get(id)).filter((end) => !node.leaves.includes(end));
    const untracked = node.to.filter((end) => end === null).length;
    const rest = untracked
      ? [make("p", `${words.plural(untracked, "input")} of it ${untracked === 1 ? "needs" : "need"} no gradient.`, "soft")]
      : [];
    return [
      ...places(model.isLeaf(node) ? "Used by" : "Gradient comes from", before),
      ...places("Gradient goes on to", after.map(near)), ...rest,
    ];
  }

  const near = (node) => [node, node.call === undefined ? "" : `in ${words.callName(node.call)}`];

  function group(thing) {
    const toggle = make("button", model.open.has(thing.index) ? "Close this group" : "Open this group");
    toggle.type = "button";
    toggle.addEventListener("click", () => go.toggle(thing));
    const parts = thing.parts.map((part) => (part < 0 ? model.groups[-part - 1] : model.nodes.get(part)));
    const spread = thing.low !== undefined && thing.low !== thing.high;
    return [
      make("h2", words.title(thing)),
      make("p", thing.times > 1 ? `${thing.times} equal groups ${thing.parallel ? "side by side" : "in a row"}` : "group", "kind"), toggle,
      facts([
        ["module", thing.name], ["class", thing.type],
        ["operations", words.count(thing.ops)],
        ["parameters", thing.parameters ? words.plural(thing.parameters, "element") : null],
        ["gradient norm", spread ? `${words.number(thing.low)} to ${words.number(thing.high)}` : reason(thing)],
        ["NaN or Inf", thing.nonfinite > 0 ? words.count(thing.nonfinite) : null],
        ["saved for backward", words.bytes(thing.bytes)],
        ["note", mark(thing)],
      ]),
      ...places("Made of", parts.map((part) => [part, inside(part)])),
    ];
  }

  const inside = (part) => (model.isGroup(part) ? `${part.type ?? ""} ${words.plural(part.ops, "op")}` : words.gradientWords(part));

  function mark(thing) {
    switch (thing.mark) {
      case "zero": return "the gradient first becomes zero here";
      case "missing": return "the gradient ends before it";
      case "nonfinite": return "NaN or Inf first appears here";
      default: return null;
    }
  }

  let shown = null;

  function show(thing) {
    shown = thing;
    if (!thing) {
      const how = "Click a box to see what it is. Double-click a group, or click its + or −, to open or close it.";
      root.replaceChildren(make("h2", "Nothing selected"), make("p", how));
      return;
    }
    root.replaceChildren(...(model.isGroup(thing) ? group(thing) : operation(thing)));
    root.scrollTop = 0;
  }

  return { show, go, refresh: () => show(shown) };
})();
