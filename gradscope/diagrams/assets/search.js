/* Search over operations, parameters, inputs, modules and source lines. */

const search = (() => {
  /* What can be found: leaves stand for themselves, groups for their modules. */
  const entries = [...model.groups.slice(1).filter((group) => !group.alone), ...model.nodes.values()]
    .filter((thing) => model.isGroup(thing) || thing.group !== undefined || model.consumers.get(thing.id).length)
    .map((thing) => ({ thing, text: textOf(thing).toLowerCase() }))
    .sort((a, b) => a.thing.place - b.thing.place || (a.thing.depth ?? 99) - (b.thing.depth ?? 99));
  let found = [];
  let current = -1;

  function textOf(thing) {
    if (model.isGroup(thing)) return `${thing.label}\n${thing.name ?? ""}\n${thing.type ?? ""}`;
    const own = thing.own ? `${textOf(thing.own)}\n` : "";
    // Only bundles of operations bring the names of their leaves along.
    const leaves = thing.kind === "bundle" ? `\n${(thing.names ?? []).join("\n")}` : "";
    return `${own}${model.isLeaf(thing) ? "" : thing.op}\n${thing.name ?? ""}\n${thing.at ?? ""}${leaves}`;
  }

  function look(query) {
    const wanted = query.trim().toLowerCase();
    found = wanted ? entries.filter(({ text }) => text.includes(wanted)).map(({ thing }) => thing) : [];
    current = -1;
    return found.length;
  }

  /* The next hit, or the one before. */
  function step(by) {
    if (!found.length) return null;
    current = current < 0 && by < 0 ? found.length - 1 : (current + by + found.length) % found.length;
    return found[current];
  }

  /* The boxes that are hits or hide one. */
  function boxes() {
    return new Set(found.flatMap(standing).map(model.boxId));
  }

  /* What is shown in a hit's place: itself, a closed group around it, or a leaf's operations. */
  function standing(thing) {
    if (model.isGroup(thing)) {
      return [model.around(thing).find((group) => !model.open.has(group.index)) ?? thing];
    }
    if (thing.group !== undefined || thing.inside !== null) return [model.standsFor(thing)];
    return model.consumers.get(thing.id).map((id) => model.standsFor(model.nodes.get(id)));
  }

  return {
    look, step, boxes,
    get place() { return [current + 1, found.length]; },
  };
})();
