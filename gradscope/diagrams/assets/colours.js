/* Colours by gradient norm or saved bytes: a logarithmic scale from the least to the greatest. */

const colours = (() => {
  const { ramp, ink, ...STATES } = model.data.colours;
  const values = {
    gradient: (thing) => thing.norm,
    saved: (thing) => thing.bytes,
  };
  const ranges = Object.fromEntries(Object.entries(values).map(([by, value]) => [by, range(value)]));

  /* From the least positive value to the greatest, at least a decade: less is no difference. */
  function range(value) {
    let [low, high] = [Infinity, 0];
    for (const thing of [...model.nodes.values(), ...model.groups.slice(1)]) {
      const x = value(thing);
      if (x > 0 && !model.isLeaf(thing)) [low, high] = [Math.min(low, x), Math.max(high, x)];
    }
    return high > 0 ? [Math.min(low, high / 10) || low, high] : null;
  }

  /* A box's fill, and the state where it is not on the scale. */
  function of(thing, by) {
    const state = words.gradientState(thing);
    if (by === "gradient" && state !== "number") return { fill: STATES[state], state };
    const value = values[by](thing);
    if (!(value > 0)) return { fill: STATES.plain, state: "plain" };
    // Differences of logarithms: the quotient of two numbers that exist may overflow.
    const [low, high] = ranges[by].map(Math.log);
    return { fill: mix(high > low ? (Math.log(value) - low) / (high - low) : 1), state: null };
  }

  function mix(share) {
    const at = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
    const i = Math.min(Math.floor(at), ramp.length - 2);
    const [a, b] = [parts(ramp[i]), parts(ramp[i + 1])];
    const mixed = a.map((x, c) => Math.round(x + (b[c] - x) * (at - i)));
    return `#${mixed.map((x) => x.toString(16).padStart(2, "0")).join("")}`;
  }

  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

  return { of, mix, ranges, ramp, ink, STATES };
})();
