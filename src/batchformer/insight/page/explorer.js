// One explorer of batches. It belongs to the element before it and touches nothing else.
(() => {
  "use strict";
  const root = document.currentScript.previousElementSibling;
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const data = JSON.parse(part("data").textContent);
  const selects = [...root.querySelectorAll("select")];
  const picks = Object.fromEntries(selects.map((select) => [select.dataset.part, select]));
  const grid = part("samples");
  const sprites = [...root.querySelectorAll("img")];
  const LISTED = 8;
  const NAMED = 3;
  // Weights that differ by no more than this part of the largest are called alike, and not ranked.
  const ALIKE = 0.01;
  const EVEN = 0.25; // strength at which they are all drawn
  // column: weights of others on the chosen one, not its own; whole: what all of them add up to.
  const MODES = {
    attends: { most: "It attends most to", whole: "its attention to others" },
    attended: {
      column: true,
      most: "It is attended most by",
      whole: "the attention it gets from others",
    },
    moves: {
      gradient: true,
      most: "Its loss moves most",
      whole: "the gradient of its loss on others",
    },
    moved: {
      gradient: true,
      column: true,
      most: "It is moved most by the loss of",
      whole: "the gradient of others' losses on it",
    },
  };

  let arm, batch, n, attention, gradients, tiles;
  let chosen = 0;
  let pinned = null;

  // Numbers and words

  const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const percent = (value) =>
    value > 0 && value < 0.0005 ? "<0.1%" : `${(100 * value).toFixed(1)}%`;
  const short = (name) => (name.length > 32 ? `${name.slice(0, 31)}\u2026` : name);
  const classOf = (i) => {
    const [name, count, shot] = arm.classes[batch.labels[i]];
    return { name, count, shot: data.shots[shot] };
  };
  // Of one shot group alone there is no word: every class is of it.
  const counted = ({ shot, count }, kind) =>
    `${shot ? `${shot}, ` : ""}${count.toLocaleString("en")} ${kind}${count === 1 ? "" : "s"}`;

  // Attention is kept in half precision, and not every browser has arrays of it.
  const half = (bits) =>
    bits < 1024 ? bits / 2 ** 24 : (1 + (bits % 1024) / 1024) * 2 ** ((bits >> 10) - 15);
  const given = (heads, i, j) =>
    sum(heads.map((head) => attention[(head * n + i) * n + j])) / heads.length;

  function relations(i) {
    const mode = root.querySelector("input:checked").value;
    const { gradient, column } = MODES[mode];
    const heads = picks.head.value === "mean" ? [...Array(arm.heads).keys()] : [+picks.head.value];
    const values = tiles.map((_, j) => {
      const [from, to] = column ? [j, i] : [i, j];
      return gradient ? gradients[from * n + to] : given(heads, from, to);
    });
    const others = sum(values) - values[i];
    const rest = values.filter((_, j) => j !== i);
    const [least, most] = [Math.min(...rest), Math.max(...rest)];
    const alike = n > 2 && most > 0 && most - least <= ALIKE * most;
    const ranked = tiles
      .map((_, j) => j)
      .filter((j) => values[j] > 0)
      .sort((a, b) => values[b] - values[a] || a - b);
    const order = alike ? [] : first(ranked, values, LISTED);
    const shown = gradient ? values.map((value) => (others > 0 ? value / others : 0)) : values;
    return { ...MODES[mode], values, shown, others, ranked, order, alike };
  }

  // The first samples, at most this many. A tie is not cut: it is left out where it would be.
  function first(ranked, values, most) {
    let end = Math.min(most, ranked.length);
    while (end > 0 && end < ranked.length && values[ranked[end - 1]] === values[ranked[end]]) end--;
    return ranked.slice(0, end);
  }

  const same = (i) => batch.labels[i] === batch.labels[chosen];
  const dimmed = (i) =>
    (picks.class.value !== "all" && picks.class.value !== String(batch.labels[i])) ||
    (picks.shot.value !== "all" && picks.shot.value !== classOf(i).shot);

  function strongestOf({ values, shown, ranked, alike, most }) {
    const rest = ranked.filter((j) => j !== chosen);
    if (!rest.length) return `${most.replace(" most", "")} no other sample.`;
    if (alike) {
      const each = sum(rest.map((j) => shown[j])) / rest.length;
      return `${most.replace(" most", "")} all others alike (${percent(each)} each).`;
    }
    const named = first(rest, values, NAMED).map(
      (j) => `sample ${j + 1} (${short(classOf(j).name)}, ${percent(shown[j])})`,
    );
    if (!named.length) {
      const equal = rest.filter((j) => values[j] === values[rest[0]]).length;
      return `${most} ${equal} samples alike (${percent(shown[rest[0]])} each).`;
    }
    const last = named.pop();
    return `${most} ${named.length ? `${named.join(", ")} and ${last}` : last}.`;
  }

  function summaryOf(found) {
    const { name } = classOf(chosen);
    const predicted = batch.predictions[chosen];
    const right = predicted === batch.labels[chosen];
    const verdict = right ? "predicted correctly" : `predicted as ${short(arm.classes[predicted][0])}`;
    return (
      `${pinned === null ? "" : "Kept: "}Sample ${chosen + 1} of ${n}, class ${short(name)} ` +
      `(${counted(classOf(chosen), "training sample")}), ${verdict}. ${strongestOf(found)}`
    );
  }

  function shareOf({ values, others, whole }) {
    const alike = tiles.map((_, j) => j).filter((j) => j !== chosen && same(j));
    if (!alike.length) return ["No other sample is of its class."];
    const share = others > 0 ? sum(alike.map((j) => values[j])) / others : 0;
    const even = `${percent(alike.length / (n - 1))} if all were equal (${alike.length} of ${n - 1})`;
    return [element("strong", `Same class: ${percent(share)}`), ` of ${whole}; ${even}.`];
  }

  function unitOf({ gradient, column, whole, alike }) {
    if (alike) return `Nothing to rank: all others are within ${100 * ALIKE}% of one another.`;
    const unit = gradient ? whole : column ? "each one's attention" : "its attention";
    return `Percent of ${unit} (${percent(1 / (gradient ? n - 1 : n))} if all were equal)`;
  }

  // What is seen

  function element(name, ...children) {
    const made = document.createElement(name);
    made.append(...children);
    return made;
  }

  function picture(i) {
    if (batch.captions) {
      const words = element("span", batch.captions[i]);
      words.className = "caption";
      return words;
    }
    const canvas = element("canvas");
    const sprite = sprites[batch.sprite];
    const wide = sprite.naturalWidth / data.columns;
    const high = sprite.naturalHeight / Math.ceil(n / data.columns);
    const [x, y] = [wide * (i % data.columns), high * Math.floor(i / data.columns)];
    [canvas.width, canvas.height] = [wide, high];
    canvas.getContext("2d").drawImage(sprite, x, y, wide, high, 0, 0, wide, high);
    return canvas;
  }

  function row(j, { values, shown, gradient }, longest) {
    const about = classOf(j);
    const remark = j === chosen ? ", itself" : same(j) ? ", same class" : "";
    const name = element("strong", about.name);
    name.title = about.name;
    const facts = element("small", `${counted(about, "sample")}${remark}`);
    const number = element("b", percent(shown[j]));
    if (gradient) number.append(element("small", values[j].toExponential(1)));
    const words = element("span", name, facts);
    if (batch.captions) words.append(element("small", batch.captions[j]));
    const item = element("li", ...(batch.captions ? [] : [picture(j)]), words, number);
    item.dataset.sample = j;
    item.style.setProperty("--strength", values[j] / longest);
    return item;
  }

  function paint() {
    const found = relations(chosen);
    const strongest = Math.max(...found.values.filter((_, j) => j !== chosen), 0) || 1;
    tiles.forEach((tile, i) => {
      const { name, shot } = classOf(i);
      const told = pinned === null ? [] : [percent(found.shown[i])];
      const text = batch.captions ? [batch.captions[i]] : [];
      const label = [`Sample ${i + 1}`, name, ...(shot ? [shot] : []), ...told, ...text].join(", ");
      tile.setAttribute("aria-label", label);
      tile.setAttribute("aria-pressed", i === pinned);
      tile.classList.toggle("chosen", i === chosen);
      tile.classList.toggle("same", i !== chosen && same(i));
      tile.classList.toggle("dimmed", dimmed(i));
      const strength = found.alike ? EVEN : found.values[i] / strongest;
      tile.style.setProperty("--strength", i === chosen ? 0 : strength);
      tile.lastChild.textContent = found.order.includes(i) ? percent(found.shown[i]) : "";
    });
    picks.head.disabled = Boolean(found.gradient);
    const quoted = batch.captions ? [element("q", batch.captions[chosen])] : [];
    part("summary").replaceChildren(...quoted, summaryOf(found));
    part("share").replaceChildren(...shareOf(found));
    part("unit").textContent = unitOf(found);
    // The sample itself may be in the list, and have more than every other.
    const longest = Math.max(...found.order.map((j) => found.values[j]), 0) || 1;
    part("list").replaceChildren(...found.order.map((j) => row(j, found, longest)));
  }

  // What is chosen

  function choose(i) {
    if (i < 0 || pinned !== null || i === chosen) return;
    chosen = i;
    paint();
  }

  function pin(i) {
    pinned = pinned === i ? null : i;
    chosen = i;
    paint();
  }

  function fill(select, options) {
    const before = select.value;
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
    if (options.some(([value]) => String(value) === before)) select.value = before;
  }

  function openBatch() {
    const before = batch?.sprite;
    batch = arm.batches[picks.batch.value];
    n = batch.labels.length;
    root.style.setProperty("--rows", Math.min(n, LISTED));
    attention = Float32Array.from(new Uint16Array(decode(batch.attention)), half);
    gradients = new Float32Array(decode(batch.gradient));
    tiles = batch.labels.map((_, i) => element("button", picture(i), element("b")));
    const count = (i) => classOf(i).count;
    if (batch.sprite !== before) {
      pinned = null;
      chosen = tiles.reduce((rarest, _, i) => (count(i) < count(rarest) ? i : rarest), 0);
    }
    tiles.forEach((tile, i) => {
      tile.type = "button";
      tile.tabIndex = i === chosen ? 0 : -1;
    });
    grid.setAttribute("aria-label", `Batch ${Number(picks.batch.value) + 1}, ${n} samples`);
    grid.replaceChildren(...tiles);
    const here = (test) => `(${tiles.filter((_, i) => test(i)).length})`;
    const classes = [...new Set(batch.labels)]
      .sort((a, b) => arm.classes[b][1] - arm.classes[a][1])
      .map((k) => [k, `${arm.classes[k][0]} ${here((i) => batch.labels[i] === k)}`]);
    const shots = data.shots.map((s) => [s, `${s} ${here((i) => classOf(i).shot === s)}`]);
    fill(picks.class, [["all", `all (${n})`], ...classes]);
    fill(picks.shot, [["all", `all (${n})`], ...shots]);
    paint();
  }

  function openArm() {
    arm = data.arms[picks.arm.value];
    fill(picks.batch, arm.batches.map((_, b) => [b, `${b + 1} of ${arm.batches.length}`]));
    const heads = Array.from({ length: arm.heads }, (_, h) => [h, `${h + 1} of ${arm.heads}`]);
    fill(picks.head, [["mean", "mean"], ...heads]);
    openBatch();
  }

  function move(event) {
    const at = tiles.indexOf(event.target);
    const across = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across };
    const to = { Home: 0, End: n - 1 }[event.key] ?? at + steps[event.key];
    if (Number.isNaN(to) || at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    tiles[to]?.focus();
  }

  const under = (event) => tiles.indexOf(event.target.closest("button"));
  grid.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "touch") choose(under(event)); // a finger that scrolls chooses nothing
  });
  grid.addEventListener("click", (event) => {
    if (under(event) >= 0) pin(under(event));
  });
  grid.addEventListener("keydown", move);
  grid.addEventListener("focusin", (event) => {
    tiles.forEach((tile) => (tile.tabIndex = tile === event.target ? 0 : -1));
    choose(under(event));
  });
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || pinned === null) return;
    pinned = null;
    const at = tiles.indexOf(document.activeElement);
    chosen = at < 0 ? chosen : at;
    paint();
  });
  root.addEventListener("change", ({ target }) => {
    if (target === picks.arm) openArm();
    else if (target === picks.batch) openBatch();
    else paint();
  });

  Promise.all(sprites.map((sprite) => sprite.decode())).then(() => {
    sprites.forEach((sprite) => sprite.remove()); // without this script they are what is seen
    fill(picks.arm, data.arms.map(({ name, seed }, a) => [a, `${name}, seed ${seed}`]));
    openArm();
    root.classList.add("live");
  });
})();
