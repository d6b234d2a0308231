/* The picture: boxes, groups and arrows as SVG; pan and zoom; selection. */

const view = (() => {
  const svg = document.getElementById("canvas");
  const LEGEND = 50; // the height that the colours' legend takes
  const port = pieces.make("g", { class: "viewport" });
  let at = { x: 0, y: 0, k: 1 };
  let by = model.data.by;
  let shown = null; // what was laid out: {boxes, clusters, arrows}
  let selected = null;
  const listeners = { select: () => {}, toggle: () => {} };
  const measured = document.createElement("canvas").getContext("2d");
  svg.append(pieces.definitions(), port);

  /* --- laying out and drawing -------------------------------------------------------------- */

  function wide(text, bold) {
    measured.font = `${bold ? 600 : 400} 13px ${getComputedStyle(svg).fontFamily}`;
    return measured.measureText(text).width;
  }

  function sized(thing) {
    const text = words.lines(thing, by).map(pieces.cut);
    const width = Math.max(...text.map((line, i) => wide(line, i === 0))) + 24;
    return {
      id: model.boxId(thing), thing, text, order: thing.place, parent: parentId(thing),
      width: Math.max(width + (model.isGroup(thing) ? 26 : 0), 96), height: pieces.LINE * text.length + 14,
    };
  }

  const parentId = (thing) => `g${model.isGroup(thing) ? thing.parent : (thing.group ?? thing.inside)}`;

  /* Lays out what is open and draws it; `anchor`, a box or a group, stays where it was. */
  function draw(anchor = null) {
    const before = anchor && find(anchor);
    const { boxes, clusters } = model.visible();
    const leaves = model.sharedLeaves(); // before any box says what leaves it holds
    shown = {
      boxes: [...boxes, ...leaves].map(sized),
      clusters: clusters.map((group) => ({
        id: group.id, thing: group, order: group.place,
        parent: group.index === 0 ? null : parentId(group),
        title: wide(pieces.clusterTitle(group), true) + 40,
      })),
      arrows: model.drawn(),
    };
    layout.place(shown.boxes, shown.clusters, shown.arrows);
    paint();
    const after = anchor && find(anchor);
    if (before && after) {
      at.x += at.k * (before.x + before.width / 2 - after.x - after.width / 2);
      at.y += at.k * (before.y - after.y);
      // A group that has just opened may be wider than what can be seen: its title stays in sight.
      const { width, height } = svg.getBoundingClientRect();
      const left = at.x + at.k * after.x;
      if (at.k * after.width > width && left < 0) at.x += Math.min(16 - left, at.k * after.width);
      if (at.y + at.k * after.y < 0 || at.y + at.k * after.y > height - 80) at.y = 70 - at.k * after.y;
    }
    move();
    mark();
  }

  function find(thing) {
    if (shown === null) return null;
    const id = model.boxId(thing);
    return [...shown.boxes, ...shown.clusters].find((item) => item.id === id) ?? null;
  }

  function paint() {
    const elements = [];
    for (const cluster of shown.clusters.slice(1)) elements.push(pieces.cluster(cluster));
    for (const arrow of shown.arrows) elements.push(...pieces.arrow(arrow));
    for (const cluster of shown.clusters.slice(1)) elements.push(cluster.label);
    for (const box of shown.boxes) elements.push(pieces.box(box, by));
    port.replaceChildren(...elements);
  }

  function recolour(what) {
    by = what;
    draw(); // what a box says of itself may be longer or shorter now
  }

  /* --- selection and hits ------------------------------------------------------------------ */

  let hits = new Set();

  /* Selects a thing; a leaf has no box, so that of an operation is marked for it. */
  function select(thing, box = thing) {
    selected = box;
    mark();
    listeners.select(thing);
  }

  function showHits(ids) {
    hits = ids;
    mark();
  }

  /* Classes only, so that a double click still finds the element that the first one met. */
  function mark() {
    const id = selected && model.boxId(selected);
    for (const { element, id: own } of [...shown.boxes, ...shown.clusters.slice(1)]) {
      element.classList.toggle("selected", own === id);
      element.classList.toggle("hit", hits.has(own));
    }
    for (const { element, label, from, to } of shown.arrows) {
      const lit = from === id || to === id;
      element.classList.toggle("lit", lit);
      label?.classList.toggle("lit", lit);
    }
  }

  function thingAt(target) {
    const id = target.closest?.("[data-id]")?.dataset.id;
    if (!id) return null;
    return id.startsWith("g") ? model.groups[Number(id.slice(1))] : model.nodes.get(Number(id.slice(1)));
  }

  /* --- pan and zoom ------------------------------------------------------------------------ */

  function move() {
    port.setAttribute("transform", `translate(${at.x},${at.y}) scale(${at.k})`);
    // A group's title stays in sight while any of its head does.
    for (const { label, x, width, title } of shown.clusters.slice(1)) {
      const shift = Math.min(Math.max(0, -at.x / at.k - x), width - title);
      label.setAttribute("transform", `translate(${Math.max(0, shift)},0)`);
    }
  }

  function zoom(factor, x, y) {
    const { width, height } = svg.getBoundingClientRect();
    const [cx, cy] = [x ?? width / 2, y ?? height / 2];
    const k = Math.min(3, Math.max(0.02, at.k * factor));
    at = { x: cx - (cx - at.x) * (k / at.k), y: cy - (cy - at.y) * (k / at.k), k };
    move();
  }

  /* All in sight; with `least`, no smaller than that: then its top. */
  function fit(least = 0.02) {
    const outermost = shown.clusters[0];
    const bounds = svg.getBoundingClientRect();
    const { width } = bounds;
    const height = bounds.height - LEGEND;
    const k = Math.max(Math.min(1.2, width / outermost.width, height / outermost.height), least);
    const tall = outermost.height * k > height;
    const root = shown.boxes.reduce((first, box) => (box.order < first.order ? box : first));
    const broad = outermost.width * k > width;
    at = {
      k,
      x: width / 2 - k * (broad ? root.x + root.width / 2 : outermost.width / 2),
      y: tall ? 0 : (height - outermost.height * k) / 2,
    };
    move();
  }

  function centre(thing) {
    const item = find(thing);
    if (!item) return;
    const { width, height } = svg.getBoundingClientRect();
    if (at.k < 0.5) at.k = 0.8;
    at.x = width / 2 - at.k * (item.x + item.width / 2);
    at.y = height / 2 - at.k * (item.y + Math.min(item.height, height / at.k - 80) / 2);
    move();
  }

  const pointers = new Map();
  let dragged = false;

  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    dragged = false;
  });
  svg.addEventListener("pointermove", (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) return;
    const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
    if (!dragged && Math.hypot(dx, dy) < 4) return;
    if (!dragged) svg.setPointerCapture(event.pointerId);
    dragged = true;
    if (pointers.size === 2) {
      const [other] = [...pointers].find(([id]) => id !== event.pointerId).slice(1);
      const bounds = svg.getBoundingClientRect();
      const apart = ([x, y]) => Math.hypot(x - other[0], y - other[1]) || 1;
      zoom(apart([event.clientX, event.clientY]) / apart(last), other[0] - bounds.left, other[1] - bounds.top);
    } else {
      at.x += dx;
      at.y += dy;
      move();
    }
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
    svg.addEventListener(end, (event) => pointers.delete(event.pointerId));
  }
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const bounds = svg.getBoundingClientRect();
    const lines = event.deltaMode === 1 ? 20 : 1;
    zoom(Math.exp(-event.deltaY * lines * 0.0016), event.clientX - bounds.left, event.clientY - bounds.top);
  }, { passive: false });
  svg.addEventListener("click", (event) => {
    if (dragged) return;
    const thing = thingAt(event.target);
    if (thing && event.target.closest(".sign")) listeners.toggle(thing);
    else if (event.detail < 2) select(thing);
  });
  svg.addEventListener("dblclick", (event) => {
    const thing = thingAt(event.target);
    if (thing && model.isGroup(thing) && !event.target.closest(".sign")) listeners.toggle(thing);
  });
  svg.addEventListener("keydown", (event) => {
    const thing = thingAt(event.target);
    if (thing && event.key === "Enter") select(thing);
    else if (thing && event.key === " " && model.isGroup(thing)) listeners.toggle(thing);
    else if (event.key === "ArrowLeft") at.x += 60;
    else if (event.key === "ArrowRight") at.x -= 60;
    else if (event.key === "ArrowUp") at.y += 60;
    else if (event.key === "ArrowDown") at.y -= 60;
    else return;
    event.preventDefault();
    move();
  });
  // A box that the keyboard reaches comes into sight.
  svg.addEventListener("focusin", (event) => {
    const thing = thingAt(event.target);
    if (!thing || !event.target.matches(":focus-visible")) return;
    const [box, bounds] = [event.target.getBoundingClientRect(), svg.getBoundingClientRect()];
    const away = box.top < bounds.top || box.left < bounds.left || box.bottom > bounds.bottom || box.right > bounds.right;
    if (away) centre(thing);
  });

  function focus(thing) {
    find(thing)?.element?.focus({ preventScroll: true });
  }

  return {
    draw, select, showHits, recolour, zoom, fit, centre, focus, listeners,
    get selected() { return selected; },
    get colouredBy() { return by; },
  };
})();
