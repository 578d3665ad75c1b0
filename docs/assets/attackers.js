// Rules of Phalanx in two dimensions, and a picture of them in which attackers can be dragged.
// No library, no network.  `tests/test_site.py` compares each figure with the library's.
"use strict";

const Rules = (() => {
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const SLACK = 1e-9; // weights that differ by less, relative to their sum, are equal

  /** Return the weighted mean of points [x, y]. */
  function mean(points, weights) {
    const total = sum(weights);
    return [0, 1].map((k) => sum(points.map((p, i) => weights[i] * p[k])) / total);
  }

  /** Return the weighted median of numbers; `shift` is added to one half of the weight, within its limits. */
  function middle(values, weights, shift = 0) {
    const order = values.map((_, i) => i).filter((i) => weights[i] > 0).sort((a, b) => values[a] - values[b]);
    const total = sum(weights), half = total / 2 + shift;
    let reached = 0, low = null;
    for (const i of order) {
      reached += weights[i];
      if (low === null && reached >= half - SLACK * total) low = values[i];
      if (reached > half + SLACK * total) return (low + values[i]) / 2;
    }
    return values[order[order.length - 1]];
  }

  /** Return the coordinate-wise weighted median. */
  function median(points, weights) {
    return [0, 1].map((k) => middle(points.map((p) => p[k]), weights));
  }

  const squared = (a, b) => (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2;

  /** Return the point with the smallest Krum score, for f attackers of average weight. */
  function krum(points, weights, f) {
    const m = points.length, unit = sum(weights) / m, mass = Math.max(m - f - 1, 2) * unit;
    let best = 0, least = Infinity;
    points.forEach((p, i) => {
      const far = points.map((q, j) => [j === i ? -1 : squared(p, q), j]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      let left = mass, score = 0;
      for (const [distance, j] of far) {
        const part = Math.min(weights[j], left);
        score += part * Math.max(distance, 0);
        left -= part;
        if (left <= SLACK * mass) break;
      }
      if (score < least * (1 - 1e-12)) [best, least] = [i, score];
    });
    return points[best];
  }

  /** Return the geometric median, by Weiszfeld's algorithm with Vardi and Zhang's test of each point. */
  function geometricMedian(points, weights) {
    const total = sum(weights);
    for (let i = 0; i < points.length; i++) {
      let pull = [0, 0], own = 0;
      points.forEach((q, j) => {
        const distance = Math.sqrt(squared(points[i], q));
        if (distance < 1e-12) own += weights[j];
        else [0, 1].forEach((k) => (pull[k] += (weights[j] * (q[k] - points[i][k])) / distance));
      });
      if (weights[i] > 0 && Math.hypot(...pull) <= own + SLACK * total) return points[i];
    }
    let z = mean(points, weights);
    for (let step = 0; step < 20000; step++) {
      const pulls = points.map((p, i) => weights[i] / Math.max(Math.sqrt(squared(p, z)), 1e-12));
      const next = mean(points, pulls), moved = Math.sqrt(squared(next, z));
      z = next;
      if (moved < 1e-13) break;
    }
    return z;
  }

  /** Return how many the attackers can be: ceil(alpha K). */
  const attackers = (alpha, clients) => Math.ceil(alpha * clients - 1e-9);

  /** Return the largest share of the weight that t clients hold. */
  function share(weights, t) {
    const sorted = [...weights].sort((a, b) => b - a);
    return sum(sorted.slice(0, t)) / sum(sorted);
  }

  /** Return U*, the largest bound on sizes with which t clients hold at most alphaStar of the weight; null: none. */
  function truncationBound(sizes, t, alphaStar) {
    const held = (bound) => share(sizes.map((size) => Math.min(size, bound)), t);
    const fits = (bound) => held(bound) <= alphaStar + 1e-12;
    let low = 1, high = Math.max(...sizes);
    if (!fits(low)) return null;
    while (low < high) {
      const next = Math.ceil((low + high) / 2);
      if (fits(next)) low = next;
      else high = next - 1;
    }
    return low;
  }

  /** Return how far any f of the points could move the median; Infinity if they hold one half of the weight. */
  function influenceOfMedian(points, weights, f) {
    const total = sum(weights), held = share(weights, f) * total;
    if (2 * held >= total * (1 - SLACK)) return Infinity;
    return Math.hypot(...[0, 1].map((k) => {
      const values = points.map((p) => p[k]), at = middle(values, weights);
      return Math.max(middle(values, weights, held) - at, at - middle(values, weights, -held));
    }));
  }

  return { mean, median, krum, geometricMedian, truncationBound, share, attackers, influenceOfMedian };
})();

(() => {
  const root = typeof document === "undefined" ? null : document.getElementById("attackers-picture");
  if (!root) return;
  const SIDE = 480, REACH = 7, CLIENTS = 20, ALPHA_STAR = 0.45;
  const at = (p) => [SIDE / 2 + (p[0] / REACH) * (SIDE / 2), SIDE / 2 - (p[1] / REACH) * (SIDE / 2)];
  const NAMES = { mean: "Mean", median: "Median", krum: "Krum", geometricMedian: "Geometric median" };
  const COLOURS = { mean: "#f0e442", median: "#0072b2", krum: "#009e73", geometricMedian: "#cc79a7" };
  const SIZES = { geometricMedian: 22, median: 17, krum: 12, mean: 7 }; // the largest first: none is hidden behind another
  const state = { bad: 4, size: 1, truncate: false, circle: true, clients: [] };

  let seed = 1; // a small generator, so that each visitor sees the same honest updates
  const random = () => ((seed = (seed * 48271) % 2147483647) / 2147483647);
  const normal = () => Math.sqrt(-2 * Math.log(random())) * Math.cos(2 * Math.PI * random());
  for (let i = 0; i < CLIENTS; i++) state.clients.push({ own: [1 + 0.6 * normal(), 1 + 0.6 * normal()], size: 50 + Math.floor(100 * random()) });
  const lies = state.clients.map((_, i) => [-4 + 0.35 * (i % 3), -3.5 + 0.35 * Math.floor(i / 3)]);

  const svg = (name, attributes, parent) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    parent.appendChild(node);
    return node;
  };
  const html = (name, attributes, parent) => {
    const node = document.createElement(name);
    Object.assign(node, attributes);
    parent.appendChild(node);
    return node;
  };

  const controls = html("div", { className: "attackers-controls" }, root);
  const slider = (label, key, min, max) => {
    const box = html("label", {}, controls), text = html("span", {}, box);
    const input = html("input", { type: "range", min, max, step: 1, value: state[key] }, box);
    input.dataset.key = key;
    const say = () => (text.textContent = `${label}: ${state[key]}`);
    input.addEventListener("input", () => { state[key] = Number(input.value); say(); draw(); });
    say();
  };
  const toggle = (label, key) => {
    const box = html("label", {}, controls), input = html("input", { type: "checkbox", checked: state[key] }, box);
    input.dataset.key = key;
    html("span", { textContent: label }, box);
    input.addEventListener("change", () => { state[key] = input.checked; draw(); });
  };
  slider("attackers", "bad", 0, 9);
  slider("attackers report times", "size", 1, 100);
  toggle("truncate sizes", "truncate");
  toggle("influence of as many further attackers on the median", "circle");
  const seen = html("div", { className: "attackers-seen" }, root);
  const canvas = svg("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": "Updates in two dimensions, and what four rules make of them" }, seen);
  const table = html("table", { className: "attackers-table" }, seen);
  const said = html("p", { className: "attackers-said" }, root);
  said.setAttribute("aria-live", "polite");

  function current() {
    const points = state.clients.map((c, i) => (i < state.bad ? lies[i] : c.own));
    const reported = state.clients.map((c, i) => (i < state.bad ? c.size * state.size : c.size));
    const bound = state.truncate ? Rules.truncationBound(reported, state.bad, ALPHA_STAR) : null;
    const weights = bound === null ? reported : reported.map((size) => Math.min(size, bound));
    return { points, reported, weights, bound };
  }

  function draw() {
    const { points, reported, weights, bound } = current();
    const honest = points.slice(state.bad), own = state.clients.slice(state.bad).map((c) => c.size);
    const target = Rules.mean(honest, own);
    canvas.replaceChildren();
    svg("rect", { x: 0, y: 0, width: SIDE, height: SIDE, class: "attackers-ground" }, canvas);
    const found = {
      mean: Rules.mean(points, weights),
      median: Rules.median(points, weights),
      krum: Rules.krum(points, weights, state.bad),
      geometricMedian: Rules.geometricMedian(points, weights),
    };
    const radius = state.bad ? Rules.influenceOfMedian(points, weights, state.bad) : 0;
    if (state.circle && Number.isFinite(radius)) {
      const [x, y] = at(found.median);
      svg("circle", { cx: x, cy: y, r: (radius / REACH) * (SIDE / 2), class: "attackers-circle" }, canvas);
    }
    points.forEach((p, i) => {
      const [x, y] = at(p), bad = i < state.bad, r = 3 + 5 * Math.sqrt(weights[i] / Math.max(...weights));
      const node = svg("circle", { cx: x, cy: y, r, class: bad ? "attackers-bad" : "attackers-honest" }, canvas);
      if (bad) { node.dataset.client = i; node.setAttribute("tabindex", 0); node.addEventListener("keydown", (event) => nudge(event, i)); }
    });
    const [tx, ty] = at(target);
    svg("path", { d: `M${tx - 9} ${ty}h18M${tx} ${ty - 9}v18`, class: "attackers-target" }, canvas);
    for (const [rule, size] of Object.entries(SIZES)) {
      const [x, y] = at(found[rule]);
      svg("rect", { x: x - size / 2, y: y - size / 2, width: size, height: size, fill: COLOURS[rule], "data-rule": rule, class: "attackers-result" }, canvas);
    }
    table.replaceChildren();
    const head = html("tr", {}, html("thead", {}, table));
    ["", "rule", "result", "from the cross"].forEach((text) => html("th", { textContent: text }, head));
    const body = html("tbody", {}, table);
    for (const [rule, p] of Object.entries(found)) {
      const row = html("tr", {}, body);
      html("td", {}, row).style.background = COLOURS[rule];
      html("td", { textContent: NAMES[rule] }, row);
      html("td", { textContent: `(${p[0].toFixed(2)}, ${p[1].toFixed(2)})` }, row);
      html("td", { textContent: Math.hypot(p[0] - target[0], p[1] - target[1]).toFixed(2) }, row);
    }
    const held = state.bad ? weights.slice(0, state.bad).reduce((a, b) => a + b, 0) / weights.reduce((a, b) => a + b, 0) : 0;
    const cut = state.truncate ? (bound === null ? " No bound makes the sizes safe: there are too many attackers." : ` Sizes count up to ${bound}.`) : "";
    const limit = Number.isFinite(radius) ? ` Any ${state.bad} further attackers move the median by at most ${radius.toFixed(2)}.` : " The median has no bound: as many clients can hold half of the weight.";
    said.textContent = `The attackers hold ${(100 * held).toFixed(0)} % of the weight.${cut}${limit}`;
    window.attackersPicture = { points, reported, weights, bound, found, radius };
  }

  let dragged = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width - 0.5) * 2 * REACH, (0.5 - (event.clientY - box.top) / box.height) * 2 * REACH];
  };
  const inside = (p) => p.map((value) => Math.max(-REACH, Math.min(REACH, value)));
  canvas.addEventListener("pointerdown", (event) => {
    const client = event.target.dataset.client;
    if (client === undefined) return;
    dragged = Number(client);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged === null) return;
    const to = inside(place(event)), from = lies[dragged];
    const step = [to[0] - from[0], to[1] - from[1]];
    // All attackers move together, unless the Shift key is held.
    for (let i = 0; i < state.bad; i++) if (i === dragged || !event.shiftKey) lies[i] = inside([lies[i][0] + step[0], lies[i][1] + step[1]]);
    draw();
  });
  canvas.addEventListener("pointerup", () => (dragged = null));
  function nudge(event, i) {
    const step = { ArrowLeft: [-0.2, 0], ArrowRight: [0.2, 0], ArrowUp: [0, 0.2], ArrowDown: [0, -0.2] }[event.key];
    if (!step) return;
    event.preventDefault();
    for (let k = 0; k < state.bad; k++) if (k === i || !event.shiftKey) lies[k] = inside([lies[k][0] + step[0], lies[k][1] + step[1]]);
    draw();
    canvas.querySelector(`[data-client="${i}"]`).focus();
  }
  draw();
})();
