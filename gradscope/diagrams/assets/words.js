/* Words and numbers for what is shown: four significant digits, bytes in binary units. */

const words = (() => {
  function number(x) {
    if (x === null || x === undefined) return "n/a";
    if (x === 0) return "0";
    const size = Math.abs(x);
    const text = size >= 1e-4 && size < 1e4 ? x.toPrecision(4) : x.toExponential(3);
    return text.replace(/e([+-])(\d)$/, "e$10$2"); // two digits, as in the other formats
  }
  const count = (n) => n.toLocaleString("en-US");
  const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
  function bytes(n) {
    if (n === null || n === undefined) return "n/a";
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    const power = n < 1024 ? 0 : Math.min(5, Math.floor(Math.log2(n) / 10));
    return power === 0 ? `${n} B` : `${number(n / 1024 ** power)} ${units[power]}`;
  }
  const shape = (sizes) => (sizes ? `[${sizes.join(", ")}]` : "");

  /* What became of the gradient: a number, or one of the words. */
  function gradientState(thing) {
    if ((model.isGroup(thing) ? thing.nonfinite : thing.bad) > 0) return "nonfinite";
    if (thing.norm === null || thing.norm === undefined) return "missing";
    return thing.norm === 0 ? "zero" : "number";
  }
  function gradientWords(thing) {
    const bad = model.isGroup(thing) ? thing.nonfinite : thing.bad;
    switch (gradientState(thing)) {
      case "nonfinite": return `${count(bad)} × NaN/Inf`;
      case "missing": return "no gradient";
      case "zero": return "zero gradient";
      default:
        if (thing.low !== undefined && thing.low !== thing.high) {
          return `gradient ${number(thing.low)} – ${number(thing.high)}`;
        }
        return `gradient ${number(thing.norm)}`;
    }
  }

  /* A leaf's name, short where it is its operation's own module's. */
  function leafName(leaf, node) {
    const name = leaf.name ?? (leaf.kind === "input" ? "input" : "unnamed leaf");
    const module = node?.call === undefined ? "" : model.data.calls[node.call][0];
    return module && name.startsWith(`${module}.`) ? name.slice(module.length + 1) : name;
  }

  /* The lines in a box, the first of them its title. */
  function lines(thing, by) {
    const last = by === "saved" ? `saved ${bytes(thing.bytes)}` : gradientWords(thing);
    if (model.isGroup(thing)) {
      const second = thing.type && thing.type !== title(thing) ? [thing.type] : [];
      return [title(thing), ...second, plural(thing.ops, "op"), last];
    }
    if (model.isLeaf(thing) && thing.inside !== null) {
      return [title(thing), `${thing.name ? `${thing.kind} ` : ""}${shape(thing.shape)}`, gradientWords(thing)];
    }
    const own = thing.leaves.filter((leaf) => leaf.inside === null);
    const leaves = own.map((leaf) => `${leafName(leaf, thing)} ${shape(leaf.shape)}`);
    const shown = leaves.length > 3 ? [...leaves.slice(0, 2), `and ${leaves.length - 2} more leaves`] : leaves;
    return [...(thing.own ? [thing.own.label] : []), thing.op, ...shown, last];
  }

  function repeated(group) {
    if (!(group.times > 1)) return group.label;
    return `${group.label} ×${group.times}${group.parallel ? ", side by side" : ""}`;
  }

  /* A name for lists and for screen readers. */
  function title(thing) {
    if (model.isGroup(thing)) return repeated(thing);
    return model.isLeaf(thing) ? (thing.name ?? thing.kind) : thing.op;
  }
  function callName(index) {
    const [name, call] = model.data.calls[index];
    return `${name || "(model)"}${call > 0 ? `, call ${call}` : ""}`;
  }

  return {
    number, count, plural, bytes, shape, gradientState, gradientWords, leafName, lines, title, callName,
  };
})();
