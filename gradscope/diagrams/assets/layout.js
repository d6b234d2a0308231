/* Layered layout of nested boxes, the loss on top.

   Each open group is laid out on its own, innermost first; for the group around it, it is one box.
   Where an arrow crosses a group's border it passes a port there. All arrows that lead to one box
   share a trunk, so that a value used a hundred times is one line that many join, not a hundred.
   Loops only, no recursion: what is open may nest as deep as it likes. */

const layout = (() => {
  const RANK_GAP = 34; // between ranks, more where many lines run
  const PAD = 18; // inside a group's border
  const HEAD = 36; // a group's own title
  const PORT_GAP = 14; // between a group's border and its first or last rank

  /* Gives every box and open group x, y, width and height, every arrow its points.
     boxes: {id, parent, order, width, height}; clusters: {id, parent, order, title}, the root's
     parent null, outer ones before inner ones; arrows: {from, to}, ids of boxes. */
  function place(boxes, clusters, arrows) {
    const items = new Map([...boxes, ...clusters].map((item) => [item.id, item]));
    const levels = new Map(clusters.map((c) => [c.id, { links: new Map(), members: [], ports: new Map() }]));
    for (const item of [...boxes, ...clusters]) {
      if (item.parent !== null) levels.get(item.parent).members.push(item);
    }
    for (const arrow of arrows) route(arrow, items, levels);
    for (const cluster of [...clusters].reverse()) arrange(cluster, levels.get(cluster.id));
    for (const cluster of clusters) {
      for (const member of levels.get(cluster.id).members) {
        member.x = cluster.x + member.inX;
        member.y = cluster.y + member.inY;
      }
    }
    for (const arrow of arrows) {
      arrow.points = arrow.hops.flatMap((hop) => trace(hop, items.get(hop.cluster)));
      if (arrow.flipped) arrow.points.reverse();
    }
  }

  function ancestry(item, items) {
    const path = [];
    for (let at = item; at !== undefined; at = items.get(at.parent)) path.push(at);
    return path.reverse();
  }

  /* Cuts an arrow into hops, one for each group that it passes through. An arrow that would lead
     up (two groups that use each other) is laid out the other way round. */
  function route(arrow, items, levels) {
    const ends = [ancestry(items.get(arrow.from), items), ancestry(items.get(arrow.to), items)];
    let common = 0;
    while (ends[0][common + 1] === ends[1][common + 1]) common += 1;
    arrow.flipped = ends[0][common + 1].order > ends[1][common + 1].order;
    const [source, target] = arrow.flipped ? [ends[1], ends[0]] : ends;
    const net = target[target.length - 1].id + (arrow.flipped ? " back" : "");
    arrow.hops = [];
    for (let i = source.length - 1; i > common + 1; i -= 1) {
      arrow.hops.push(link(levels, source[i - 1].id, source[i], port(levels, source[i - 1].id, net, true), net));
    }
    arrow.hops.push(link(levels, source[common].id, source[common + 1], target[common + 1], net));
    for (let i = common + 2; i < target.length; i += 1) {
      arrow.hops.push(link(levels, target[i - 1].id, port(levels, target[i - 1].id, net, false), target[i], net));
    }
  }

  function port(levels, cluster, net, out) {
    const ports = levels.get(cluster).ports;
    const id = `${out ? "out" : "in"} ${net}`;
    if (!ports.has(id)) ports.set(id, { id, net, port: out ? "out" : "in", width: 4, height: 0 });
    return ports.get(id);
  }

  function link(levels, cluster, from, to, net) {
    const links = levels.get(cluster).links;
    const id = `${from.id}>${to.id}>${net}`;
    if (!links.has(id)) links.set(id, { cluster, from, to, net });
    return links.get(id);
  }

  /* One group's own members: ranks, order within ranks, places; then the group's size. */
  function arrange(cluster, level) {
    const ports = [...level.ports.values()];
    const links = [...level.links.values()];
    const members = [...level.members].sort((a, b) => a.order - b.order);
    const count = rank(members, ports, links);
    const layers = Array.from({ length: count }, () => []);
    const spots = new Map();
    for (const item of [...members, ...ports]) {
      const spot = { item, width: item.width, height: item.height, up: [], down: [], rank: item.rank };
      spots.set(item, spot);
      layers[item.rank].push(spot);
    }
    stretch(links, spots, layers);
    ranks.order(layers);
    ranks.position(layers);
    measure(cluster, layers, ports);
  }

  /* The longest way from the top, so that arrows lead down; ports at the top and the bottom. */
  function rank(members, ports, links) {
    const entries = ports.some((p) => p.port === "in") ? 1 : 0;
    const leaving = new Map();
    const arriving = new Map();
    for (const { from, to } of links) {
      leaving.set(from, [...(leaving.get(from) ?? []), to]);
      arriving.set(to, (arriving.get(to) ?? 0) + 1);
    }
    for (const item of members) item.rank = entries;
    for (const item of members) {
      for (const to of leaving.get(item) ?? []) {
        if (!to.port) to.rank = Math.max(to.rank, item.rank + 1);
      }
    }
    const last = members.reduce((most, item) => Math.max(most, item.rank), 0);
    for (const item of ports) item.rank = item.port === "in" ? 0 : last + 1;
    for (const item of [...members].reverse()) {
      const next = leaving.get(item) ?? [];
      // With more lines below than above, it is as low as it can be: fewer long lines.
      if (next.length > (arriving.get(item) ?? 0)) {
        item.rank = Math.max(item.rank, Math.min(...next.map((to) => to.rank)) - 1);
      }
    }
    return last + (ports.some((p) => p.port === "out") ? 2 : 1);
  }

  /* Fills the ranks between with the trunks of each target. */
  function stretch(links, spots, layers) {
    const trunks = new Map();
    for (const link of links) {
      const id = `${link.to.id}>${link.net}`;
      if (!trunks.has(id)) trunks.set(id, []);
      trunks.get(id).push(link);
    }
    for (const joined of trunks.values()) {
      const target = spots.get(joined[0].to);
      const chain = new Map([[target.rank, target]]);
      const top = Math.min(...joined.map((l) => l.from.rank));
      for (let r = target.rank - 1; r > top; r -= 1) {
        const dummy = { item: null, width: ranks.TRUNK, height: 0, up: [], down: [], rank: r };
        chain.set(r, dummy);
        layers[r].push(dummy);
        connect(dummy, chain.get(r + 1), joined[0].net);
      }
      for (const l of joined) {
        l.spots = [spots.get(l.from)];
        for (let r = l.from.rank + 1; r <= target.rank; r += 1) l.spots.push(chain.get(r));
        connect(l.spots[0], l.spots[1], l.net);
      }
    }
  }

  /* Where a line meets an item, from the item's middle: at a group, its port. */
  function offset(spot, net, out) {
    const at = spot.item?.portX?.get(`${out ? "out" : "in"} ${net}`);
    return at === undefined ? 0 : at - spot.width / 2;
  }

  function connect(upper, lower, net) {
    const weight = (upper.item ? 1 : 4) * (lower.item ? 1 : 4); // long lines straight first
    const shift = offset(upper, net, true) - offset(lower, net, false);
    upper.down.push({ spot: lower, weight, shift: -shift });
    lower.up.push({ spot: upper, weight, shift });
  }

  /* The group's size, and where its members and ports are in it. */
  function measure(cluster, layers, ports) {
    const spots = layers.flat();
    const framed = cluster.parent !== null;
    const left = spots.reduce((least, s) => Math.min(least, s.x - s.width / 2), Infinity);
    const right = spots.reduce((most, s) => Math.max(most, s.x + s.width / 2), -Infinity);
    const wide = Math.max(right - left, framed ? cluster.title : 0);
    const shift = PAD - left + (wide - (right - left)) / 2;
    let y = framed ? HEAD : PAD;
    for (const [i, layer] of layers.entries()) {
      const height = layer.reduce((most, s) => Math.max(most, s.height), 0);
      for (const spot of layer) {
        spot.x += shift;
        Object.assign(spot, { top: y, bottom: y + height });
        if (spot.item && !spot.item.port) {
          Object.assign(spot.item, { inX: spot.x - spot.width / 2, inY: y + (height - spot.height) / 2 });
        }
      }
      const lines = layer.reduce((sum, s) => sum + s.down.length, 0);
      const last = i === layers.length - 1;
      const ports = [layer, layers[i + 1] ?? []].some((one) => one.some((s) => s.item?.port));
      y += height + (last ? 0 : (ports ? PORT_GAP : RANK_GAP) + Math.min(60, 2 * (lines - 1)));
    }
    cluster.width = wide + 2 * PAD;
    cluster.height = y + PAD;
    cluster.portX = new Map();
    for (const layer of layers) {
      for (const { item, x } of layer) if (item?.port) cluster.portX.set(item.id, x);
    }
    if (!framed) Object.assign(cluster, { x: 0, y: 0 });
  }

  /* The points of one hop: straight past the boxes of a rank, curved only between ranks. */
  function trace(hop, cluster) {
    const [first] = hop.spots;
    const last = hop.spots[hop.spots.length - 1];
    const startX = first.x + offset(first, hop.net, true);
    const endX = last.x + offset(last, hop.net, false);
    const start = first.item.port ? 0 : first.item.inY + first.item.height;
    const end = last.item.port ? cluster.height : last.item.inY;
    const points = [[startX, start], [startX, first.bottom]];
    for (const spot of hop.spots.slice(1, -1)) points.push([spot.x, spot.top], [spot.x, spot.bottom]);
    points.push([endX, last.top], [endX, end]);
    return points.map(([x, y]) => [cluster.x + x, cluster.y + y]);
  }

  /* The points as an SVG path. */
  function path(points) {
    const steps = [`M${points[0].map(round)}`];
    for (let i = 1; i < points.length; i += 1) {
      const [x0, y0] = points[i - 1];
      const [x, y] = points[i];
      if (Math.hypot(x - x0, y - y0) < 0.1) continue; // would turn the arrow's head
      const middle = (y0 + y) / 2;
      if (Math.abs(x - x0) < 0.5) steps.push(`L${round(x)},${round(y)}`);
      else steps.push(`C${[x0, middle, x, middle, x, y].map(round)}`);
    }
    return steps.join("");
  }

  const round = (x) => Math.round(10 * x) / 10;

  return { place, path, HEAD };
})();
