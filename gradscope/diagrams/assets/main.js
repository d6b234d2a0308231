/* What the reader does: buttons, keys, and how they move the picture, the panel and the search. */

(() => {
  const get = (id) => document.getElementById(id);
  const input = get("search");
  const legend = get("scale");

  function say(text) {
    get("message").textContent = text;
  }

  function refused(count) {
    return `That would draw ${words.count(count)} boxes; the page draws at most ${model.LIMIT} at once.`;
  }

  function redraw(anchor) {
    view.draw(anchor);
    view.showHits(search.boxes());
    panel.refresh();
  }

  function toggle(group) {
    if (model.open.has(group.index)) {
      model.close(group);
      say("");
    } else {
      const count = model.tryOpen(group);
      say(count === null ? "" : `${refused(count)} Close other groups first.`);
      if (count !== null) return;
    }
    redraw(group);
    view.select(group);
    view.focus(group);
  }

  /* Brings something into sight, opening the groups around it; where there is no room for them, all
     others are closed. */
  function reveal(thing) {
    let box = thing;
    if (!model.isGroup(thing) && thing.group === undefined && thing.inside === null) {
      const [first] = model.consumers.get(thing.id);
      box = model.nodes.get(first);
    }
    const [inner] = model.around(box).slice(-1);
    if (inner && !model.open.has(inner.index)) {
      if (model.tryOpen(inner) !== null) {
        model.close(model.groups[0]);
        const count = model.tryOpen(inner);
        if (count !== null) return say(refused(count));
        say("Other groups were closed to make room.");
      }
      redraw(null);
    }
    if (typeof thing.inside === "number") box = thing; // a leaf that has become a box
    view.select(thing, box);
    view.showHits(search.boxes());
    view.centre(box);
  }

  /* --- search ------------------------------------------------------------------------------ */

  function counted() {
    const [at, of] = search.place;
    get("hits").textContent = input.value.trim() ? (of ? `${at} of ${words.count(of)}` : "not found") : "";
  }

  function step(by) {
    const hit = search.step(by);
    if (hit) reveal(hit);
    counted();
  }

  input.addEventListener("input", () => {
    search.look(input.value);
    view.showHits(search.boxes());
    counted();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      step(event.shiftKey ? -1 : 1);
    }
  });
  get("next").addEventListener("click", () => step(1));
  get("previous").addEventListener("click", () => step(-1));

  /* --- folding ----------------------------------------------------------------------------- */

  const depth = get("depth");
  for (let d = 1; d <= Math.min(model.deepest, 12); d += 1) {
    const option = document.createElement("option");
    option.value = d;
    option.textContent = `to depth ${d}`;
    depth.append(option);
  }
  const every = document.createElement("option");
  every.value = model.deepest;
  every.textContent = "everything";
  depth.append(every);

  function openTo(wanted) {
    const { reached, wanted: count } = model.openTo(wanted);
    say(count === null ? "" : `${refused(count)} Opened to depth ${reached}.`);
    redraw(null);
    view.fit(0.5);
  }

  depth.addEventListener("change", () => {
    if (depth.value !== "") openTo(Number(depth.value));
    depth.value = "";
  });
  get("close-all").addEventListener("click", () => {
    model.close(model.groups[0]);
    say("");
    redraw(null);
    view.fit(0.5);
  });

  /* --- colour ------------------------------------------------------------------------------ */

  function key(name, fill, dashed) {
    const row = document.createElement("span");
    row.className = dashed ? `key ${dashed}` : "key";
    const patch = document.createElement("i");
    patch.style.background = fill;
    row.append(patch, name);
    return row;
  }

  function drawLegend() {
    const by = view.colouredBy;
    const range = colours.ranges[by];
    const name = document.createElement("span");
    name.className = "scale-name";
    name.textContent = by === "gradient" ? "gradient norm, log scale" : "saved bytes, log scale";
    const rows = [name];
    if (range) {
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.style.background = `linear-gradient(to right, ${colours.ramp.join(",")})`;
      const format = by === "gradient" ? words.number : words.bytes;
      rows.push(format(range[0]), bar, format(range[1]));
    }
    if (by === "gradient") {
      rows.push(key("zero", colours.STATES.zero, "zero"), key("none", colours.STATES.missing, "missing"),
        key("NaN/Inf", colours.STATES.nonfinite, "nonfinite"));
    } else rows.push(key("nothing saved, or unknown", colours.STATES.plain));
    legend.replaceChildren(...rows);
  }

  get("colour").value = view.colouredBy;
  get("colour").addEventListener("change", (event) => {
    view.recolour(event.target.value);
    drawLegend();
  });

  /* --- zoom and keys ----------------------------------------------------------------------- */

  get("zoom-in").addEventListener("click", () => view.zoom(1.3));
  get("zoom-out").addEventListener("click", () => view.zoom(1 / 1.3));
  get("fit").addEventListener("click", () => view.fit());

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      input.value = "";
      search.look("");
      view.showHits(new Set());
      counted();
      say("");
      view.select(null);
      if (typing) input.blur();
    } else if (typing) {
      return;
    } else if (event.key === "/") input.focus();
    else if (event.key === "+" || event.key === "=") view.zoom(1.3);
    else if (event.key === "-") view.zoom(1 / 1.3);
    else if (event.key === "0") view.fit();
    else return;
    event.preventDefault();
  });

  view.listeners.select = panel.show;
  view.listeners.toggle = toggle;
  panel.go.to = reveal;
  panel.go.toggle = toggle;

  document.documentElement.classList.add("scripted");
  get("app").hidden = false;
  view.draw();
  view.fit(0.8);
  drawLegend();
  panel.show(null);
})();
