/* Within a layered layout: the order of the spots in each rank, and their places from left to right.

   A spot has a `width`, and in `up` and `down` its neighbours: {spot, weight, shift}, where `shift`
   is how far from the neighbour's middle the line between them wants this spot's. */

const ranks = (() => {
  const GAP = 26; // between boxes side by side
  const TRUNK = 12; // what a line that passes by takes in width
  const SWEEPS = 10;

  /* Fewer crossings: each rank sorted by the mean place of its neighbours, down and up again. */
  function order(layers) {
    const number = () => layers.forEach((layer) => layer.forEach((spot, i) => { spot.at = i; }));
    number();
    let best = layers.map((layer) => [...layer]);
    let fewest = crossings(layers);
    for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep += 1) {
      const down = sweep % 2 === 0;
      for (const layer of down ? layers : [...layers].reverse()) {
        for (const spot of layer) {
          const near = down ? spot.up : spot.down;
          const sum = near.reduce((s, n) => s + n.spot.at + n.shift / 1e5, 0);
          spot.mean = near.length ? sum / near.length : spot.at;
        }
        layer.sort((a, b) => a.mean - b.mean || a.at - b.at);
        layer.forEach((spot, i) => { spot.at = i; });
      }
      const now = crossings(layers);
      if (now < fewest) {
        fewest = now;
        best = layers.map((layer) => [...layer]);
      }
    }
    best.forEach((layer, i) => { layers[i] = layer; });
    number();
  }

  /* Crossings between neighbouring ranks, by insertion into a sorted list. */
  function crossings(layers) {
    let total = 0;
    for (const layer of layers) {
      const ends = layer.flatMap((spot) => spot.down.map((n) => n.spot.at).sort((a, b) => a - b));
      const seen = [];
      for (const end of ends) {
        let low = 0;
        let high = seen.length;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (seen[middle] > end) high = middle; else low = middle + 1;
        }
        total += seen.length - low;
        seen.splice(low, 0, end);
      }
    }
    return total;
  }

  /* Each spot under the mean of its neighbours, in the order found and without overlap. */
  function position(layers) {
    for (const layer of layers) {
      let x = 0;
      for (const [i, spot] of layer.entries()) {
        x += i ? apart(layer[i - 1], spot) : 0;
        spot.x = x;
      }
    }
    for (let sweep = 0; sweep < 3 * SWEEPS; sweep += 1) {
      const down = sweep % 2 === 0;
      const both = sweep > 2 * SWEEPS;
      for (const layer of down ? layers : [...layers].reverse()) {
        const wanted = layer.map((spot) => {
          const near = both ? [...spot.up, ...spot.down] : down ? spot.up : spot.down;
          const weight = near.reduce((s, n) => s + n.weight, 0);
          if (!weight) return [spot.x, 0.01];
          return [near.reduce((s, n) => s + n.weight * (n.spot.x + n.shift), 0) / weight, weight];
        });
        settle(layer, wanted);
      }
    }
  }

  function apart(left, right) {
    const gap = left.item && right.item && !left.item.port && !right.item.port ? GAP : TRUNK;
    return left.width / 2 + gap + right.width / 2;
  }

  /* The places nearest to the wanted ones (least squares) that keep order and distance: spots that
     would overlap are pooled and move as one. */
  function settle(layer, wanted) {
    const pools = [];
    let shift = 0;
    for (const [i, spot] of layer.entries()) {
      shift += i ? apart(layer[i - 1], spot) : 0;
      spot.shift = shift;
      let pool = { at: wanted[i][0] - shift, weight: wanted[i][1], spots: [spot] };
      while (pools.length && pools[pools.length - 1].at > pool.at) {
        const left = pools.pop();
        const weight = left.weight + pool.weight;
        pool = {
          at: (left.at * left.weight + pool.at * pool.weight) / weight,
          weight,
          spots: [...left.spots, ...pool.spots],
        };
      }
      pools.push(pool);
    }
    for (const pool of pools) for (const spot of pool.spots) spot.x = pool.at + spot.shift;
  }

  return { order, position, TRUNK };
})();
