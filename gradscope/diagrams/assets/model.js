/* The graph as the page holds it: operations, groups, and which of them are shown.

   Nothing here touches the document. A group's `parts` are ids of operations (0 and up) and of
   groups (-1 for the first). A leaf (parameter, input) is in the box of the operation that uses
   it; where a few boxes share it, it is a box itself. */

const model = (() => {
  const data = JSON.parse(document.getElementById("graph-data").textContent);
  const nodes = new Map(data.nodes.map((node, place) => [node.id, { ...node, place }]));
  const groups = data.groups;
  const LIMIT = data.limit; // boxes shown at once
  const SHARED = 6; // boxes that may lead to one leaf: more lines would cover the picture
  const isLeaf = (node) => node.kind === "parameter" || node.kind === "input";

  for (const [index, group] of groups.entries()) {
    Object.assign(group, { index, id: `g${index}`, place: Infinity });
    for (const part of group.parts) {
      if (part < 0) groups[-part - 1].parent = index;
      else nodes.get(part).group = index;
    }
  }
  // A module of one operation and the operation are one box.
  for (const group of groups.slice(1)) {
    if (group.parts.length !== 1 || group.parts[0] < 0) continue;
    const node = nodes.get(group.parts[0]);
    const { parts } = groups[group.parent];
    parts[parts.indexOf(-1 - group.index)] = node.id;
    Object.assign(node, { group: group.parent, own: group });
    group.alone = node;
  }
  for (const group of [...groups].reverse()) {
    // Groups are written outer ones first: backwards, a group's own groups are done before it.
    for (const part of group.parts) {
      const place = part < 0 ? groups[-part - 1].place : nodes.get(part).place;
      group.place = Math.min(group.place, place);
    }
    group.depth = 0;
  }
  for (const group of groups.slice(1)) group.depth = groups[group.parent].depth + 1;

  /* Arrows between operations, and who leads to whom; leaves go to those that use them. */
  const arrows = [];
  const consumers = new Map([...nodes.keys()].map((id) => [id, []]));
  for (const node of nodes.values()) {
    node.leaves = [];
    const bundle = node.kind === "bundle"; // its `to` counts: [where to, how many]
    node.on ??= node.to.filter((end) => end !== null).map(([id]) => id);
    for (const [i, id] of node.on.entries()) {
      const end = nodes.get(id);
      consumers.get(id).push(node.id);
      if (end.group !== undefined) arrows.push([node.id, id, bundle ? node.to[i][1] : 1]);
      else if (!node.leaves.includes(end)) node.leaves.push(end);
    }
  }

  const shareable = [...nodes.values()].filter((node) => {
    node.inside = null;
    return node.group === undefined && new Set(consumers.get(node.id)).size > 1;
  });

  const open = new Set(groups.filter((group) => group.open && !group.alone).map((group) => group.index));
  open.add(0);

  /* The groups around an operation or a group, outermost first. */
  function around(thing) {
    const path = [];
    const first = isGroup(thing) ? thing.parent : thing.group;
    for (let at = first; at !== undefined; at = groups[at].parent) path.push(groups[at]);
    return path.reverse();
  }

  /* Closed groups and operations to draw, open groups, and the box that stands for a node. */
  function visible() {
    const boxes = [];
    const clusters = [];
    const stack = [groups[0]];
    while (stack.length) {
      const group = stack.pop();
      clusters.push(group);
      for (const part of group.parts) {
        const thing = part < 0 ? groups[-part - 1] : nodes.get(part);
        if (part < 0 && open.has(thing.index)) stack.push(thing);
        else boxes.push(thing);
      }
    }
    return { boxes, clusters };
  }

  function standsFor(node) {
    if (node.group === undefined) return node.inside === null ? standsFor(user(node)) : node;
    return around(node).find((group) => !open.has(group.index)) ?? node;
  }

  const user = (leaf) => nodes.get(consumers.get(leaf.id)[0]);

  /* The leaves that are boxes now; `inside` is the innermost open group around all their users. */
  function sharedLeaves() {
    return shareable.filter((leaf) => {
      const users = new Set();
      leaf.inside = null;
      for (const id of consumers.get(leaf.id)) {
        users.add(standsFor(nodes.get(id)));
        if (users.size > SHARED) return false;
      }
      if (users.size < 2) return false;
      const paths = [...users].map(around);
      let depth = 1;
      while (paths[0][depth] && paths.every((path) => path[depth] === paths[0][depth])) depth += 1;
      leaf.inside = paths[0][depth - 1].index;
      return true;
    });
  }

  /* Arrows between what is shown, equal ones counted. */
  function drawn() {
    const found = new Map();
    const box = new Map();
    for (const node of nodes.values()) {
      if (node.group !== undefined || node.inside !== null) box.set(node.id, boxId(standsFor(node)));
    }
    const toLeaves = shareable.filter((leaf) => leaf.inside !== null)
      .flatMap((leaf) => consumers.get(leaf.id).map((id) => [id, leaf.id, 1]));
    for (const [from, to, count] of [...arrows, ...toLeaves]) {
      const [a, b] = [box.get(from), box.get(to)];
      if (a === b) continue;
      const key = `${a}>${b}`;
      if (!found.has(key)) found.set(key, { from: a, to: b, count: 0 });
      found.get(key).count += count;
    }
    return [...found.values()];
  }

  const boxId = (thing) => (thing.index === undefined ? `n${thing.id}` : thing.id);
  const isGroup = (thing) => thing.index !== undefined;
  const boxCount = () => visible().boxes.length;

  /* Opens a group and those around it. What says no is the number of boxes it would take. */
  function tryOpen(group) {
    const added = [...around(group), group].filter((g) => !open.has(g.index));
    for (const g of added) open.add(g.index);
    const count = boxCount();
    if (count <= LIMIT) return null;
    for (const g of added) open.delete(g.index);
    return count;
  }

  /* Closes a group and all in it. */
  function close(group) {
    for (const index of [...open]) {
      if (index === group.index || around(groups[index]).includes(group)) open.delete(index);
    }
    open.add(0);
  }

  /* Opens what lies above a depth, as deep as there is room for; returns the depth reached. */
  function openTo(depth) {
    const before = [...open];
    let reached = 0;
    let last = before;
    for (let d = 0; d <= depth; d += 1) {
      open.clear();
      for (const group of groups) if (group.depth <= d && !group.alone) open.add(group.index);
      const count = boxCount();
      if (count > LIMIT) {
        open.clear();
        for (const index of d === 0 ? before : last) open.add(index);
        return { reached, wanted: count };
      }
      reached = d;
      last = [...open];
    }
    return { reached, wanted: null };
  }

  const deepest = groups.reduce((most, group) => (group.alone ? most : Math.max(most, group.depth)), 0);

  return {
    data, nodes, groups, open, consumers, LIMIT, deepest, isLeaf, isGroup, boxId, around, visible,
    sharedLeaves, drawn, standsFor, tryOpen, close, openTo, boxCount,
  };
})();
