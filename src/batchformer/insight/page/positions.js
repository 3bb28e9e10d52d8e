// The patches of the chosen image, and what each gives to the same patch of every image.
(() => {
  "use strict";
  const root = document.currentScript.previousElementSibling;
  const data = JSON.parse(root.querySelector("script").textContent);
  const bytes = Uint8Array.from(atob(data.maps), (letter) => letter.charCodeAt(0));
  const maps = new Float32Array(bytes.buffer); // image, image, row, column
  const tiles = [...root.querySelectorAll("button")];
  const { rows, columns } = data;
  const CELL = 12; // pixels of a patch in its canvas
  const share = (i, j, p) => maps[(i * tiles.length + j) * rows * columns + p];
  const percent = (value) => `${(100 * value).toFixed(1)}%`;
  let chosen = 0;
  let patch = 0;

  const draw = () => {
    const given = tiles.map((_, j) => Array.from({ length: rows * columns }, (_, p) => share(chosen, j, p)));
    tiles.forEach((tile, j) => {
      tile.classList.toggle("chosen", j === chosen);
      const canvas = tile.querySelector("canvas");
      [canvas.width, canvas.height] = [columns * CELL, rows * CELL];
      const pen = canvas.getContext("2d");
      given[j].forEach((value, p) => {
        pen.fillStyle = `rgba(205, 20, 20, ${0.85 * (value / data.darkest)})`;
        pen.fillRect((p % columns) * CELL, Math.floor(p / columns) * CELL, CELL, CELL);
      });
      pen.lineWidth = 2;
      pen.strokeStyle = "#0b57d0";
      pen.strokeRect((patch % columns) * CELL + 1, Math.floor(patch / columns) * CELL + 1, CELL - 2, CELL - 2);
      tile.querySelector("b").textContent = percent(given[j][patch]);
    });
    const order = tiles.map((_, j) => j).sort((a, b) => given[b][patch] - given[a][patch]);
    const most = order.slice(0, 3).map((j) => `${percent(given[j][patch])} to image ${j + 1}`);
    const where = `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;
    root.querySelector("[data-part=summary]").textContent =
      `Image ${chosen + 1}, patch in ${where}, gives most: ${most.join(", ")}.`;
  };

  tiles.forEach((tile, j) => {
    tile.addEventListener("click", (event) => {
      const box = tile.querySelector(".view").getBoundingClientRect();
      const place = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
      chosen = j;
      if (event.detail) { // 0 if the keyboard clicked
        const row = place((event.clientY - box.top) / box.height, rows);
        patch = row * columns + place((event.clientX - box.left) / box.width, columns);
      }
      draw();
    });
  });
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    const row = Math.floor(patch / columns) + step[0];
    const column = (patch % columns) + step[1];
    if (row >= 0 && row < rows && column >= 0 && column < columns) patch = row * columns + column;
    event.preventDefault();
    draw();
  });
  // Begin with the patch that gives most to a single other image.
  let largest = -1;
  for (let i = 0; i < tiles.length; i++)
    for (let j = 0; j < tiles.length; j++)
      for (let p = 0; i !== j && p < rows * columns; p++)
        if (share(i, j, p) > largest) [largest, chosen, patch] = [share(i, j, p), i, p];
  draw();
})();
