/* The SVG elements of the picture: boxes, frames of open groups, arrows. Text is set with
   textContent only: names come from the model and are not trusted. */

const pieces = (() => {
  const SVG = document.getElementById("canvas").namespaceURI;
  const LINE = 16; // of text in a box

  function make(tag, attributes = {}, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function definitions() {
    const arrow = (id) => make("marker", {
      id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto",
    }, make("path", { d: "M0,0.5L8,4L0,7.5z" }));
    const stripes = make("pattern", {
      id: "stripes", width: 8, height: 8, patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)",
    }, make("rect", { width: 8, height: 8, fill: colours.STATES.missing }),
    make("rect", { width: 2, height: 8, fill: "#cdcdcd" }));
    return make("defs", {}, arrow("tip"), arrow("tip-lit"), stripes);
  }

  const cut = (text) => (text.length > 44 ? `${text.slice(0, 21)}…${text.slice(-22)}` : text);

  const clusterTitle = (group) => cut(words.title(group)) + (typed(group) ? `  ${cut(group.type)}` : "");
  const typed = (group) => group.type && group.type !== group.label;

  function cluster(item) {
    const { thing, x, y, width, height } = item;
    const name = make("tspan", { class: "name" });
    name.textContent = cut(words.title(thing));
    const type = make("tspan", { class: "type", dx: 8 });
    type.textContent = typed(thing) ? cut(thing.type) : "";
    item.element = make("g", {
      class: "cluster", tabindex: 0, role: "button", "aria-expanded": "true",
      "aria-label": `${words.title(thing)}, open group, ${words.plural(thing.ops, "operation")}`,
    },
    make("rect", { class: thing.depth % 2 ? "frame odd" : "frame", x, y, width, height, rx: 9 }),
    make("rect", { class: "head", x, y, width, height: layout.HEAD - 6, rx: 9 }));
    // Above the arrows, which may cross it.
    item.label = make("g", { class: thing.depth % 2 ? "label odd" : "label", "aria-hidden": "true" },
      sign(x + 17, y + 15, false), make("text", { x: x + 34, y: y + 20 }, name, type));
    for (const element of [item.element, item.label]) element.dataset.id = item.id;
    return item.element;
  }

  /* The little square that opens or closes. */
  function sign(x, y, closed) {
    const d = closed ? `M${x - 4},${y}h8M${x},${y - 4}v8` : `M${x - 4},${y}h8`;
    return make("g", { class: "sign" },
      make("rect", { x: x - 8, y: y - 8, width: 16, height: 16, rx: 3 }), make("path", { d }));
  }

  function arrow(item) {
    item.element = make("path", { class: "arrow", d: layout.path(item.points) });
    if (item.count === 1) return [item.element];
    const [x, y] = item.points[item.flipped ? 0 : 1];
    item.label = make("text", { class: "times", x: x + 5, y: y + (item.flipped ? -6 : 14) });
    item.label.textContent = `×${item.count}`;
    return [item.element, item.label];
  }

  function box(item, by) {
    const { thing, x, y, width, height } = item;
    const group = model.isGroup(thing);
    const { fill, state } = colours.of(thing, by);
    const lines = item.text.map((line, i) => {
      const element = make("text", { x: x + 12, y: y + 19 + LINE * i, class: i === 0 ? "name" : "fact", fill: colours.ink });
      element.textContent = line;
      return element;
    });
    item.element = make("g", {
      class: `box ${group ? "group" : model.isLeaf(thing) ? "leaf" : "op"} ${state ?? "scaled"}`, tabindex: 0, role: "button",
      "aria-label": `${group ? "closed group " : ""}${words.lines(thing, by).join(", ")}`,
    });
    if (group) {
      item.element.setAttribute("aria-expanded", "false");
      // A second sheet behind: there is more inside.
      item.element.append(make("rect", { class: "sheet", x: x + 4, y: y + 4, width, height, rx: 8, fill }));
    }
    item.element.append(make("rect", {
      class: "face", x, y, width, height, rx: group ? 8 : model.isLeaf(thing) ? 16 : 4, fill: state === "missing" ? "url(#stripes)" : fill,
    }), ...lines);
    if (group) item.element.append(sign(x + width - 15, y + 15, true));
    item.element.dataset.id = item.id;
    return item.element;
  }

  return { make, definitions, cut, clusterTitle, cluster, arrow, box, LINE };
})();
