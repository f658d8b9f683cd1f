"use strict";
const profiles = JSON.parse(document.getElementById("data").textContent);
const ROW = 18, LABEL = 260;
function color(i) { return `hsl(${(i * 67) % 360} 55% 55%)`; }
function levels(spans) {           // how deep each span lies in others
  const open = [], depth = [];
  for (const [start, length] of spans) {
    while (open.length && open[open.length - 1] <= start) open.pop();
    depth.push(open.length); open.push(start + length);
  }
  return depth;
}
for (const canvas of document.querySelectorAll("canvas.timeline")) {
  const { names, tracks } = profiles[Number(canvas.dataset.profile)];
  const hint = canvas.nextElementSibling;
  let y = 0, whole = 1;
  for (const track of tracks) {
    track.depth = levels(track.spans);
    track.y = y;
    y += (Math.min(5, Math.max(0, ...track.depth)) + 1) * ROW + 6;
    for (const [start, length] of track.spans) whole = Math.max(whole, start + length);
  }
  let from = 0, to = whole;
  const height = Math.max(40, y);
  function draw() {
    const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
    canvas.width = width * scale; canvas.height = height * scale; canvas.style.height = height + "px";
    const g = canvas.getContext("2d");
    g.scale(scale, scale); g.clearRect(0, 0, width, height);
    g.font = "12px system-ui, sans-serif";
    const px = (width - LABEL) / (to - from), ink = getComputedStyle(canvas).color;
    let drawn = 0;
    for (const track of tracks) {
      g.fillStyle = ink; g.fillText((track.process + ": " + track.name).slice(0, 42), 2, track.y + 13);
      track.spans.forEach(([start, length, name], i) => {
        if (start > to || start + length < from || track.depth[i] > 5) return;
        const x = LABEL + Math.max(0, (start - from) * px);
        const w = Math.max(0.6, (Math.min(start + length, to) - Math.max(start, from)) * px);
        g.fillStyle = color(name); g.fillRect(x, track.y + track.depth[i] * ROW, w, ROW - 2);
        if (w > 60) { g.fillStyle = "#fff"; g.fillText(names[name].slice(0, w / 7), x + 3, track.y + track.depth[i] * ROW + 12, w); }
        drawn++;
      });
    }
    canvas.dataset.drawn = drawn;
  }
  function at(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, line = event.clientY - box.top;
    const time = from + (x - LABEL) / (box.width - LABEL) * (to - from);
    for (const track of tracks) for (let i = track.spans.length - 1; i >= 0; i--) {
      const [start, length, name] = track.spans[i], top = track.y + track.depth[i] * ROW;
      if (line >= top && line < top + ROW && time >= start && time <= start + length)
        return `${names[name]}: ${length.toFixed(3)} us from ${start.toFixed(3)} us (${track.process}, ${track.name})`;
    }
    return "\u00a0";
  }
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect(), part = Math.max(0, (event.clientX - box.left - LABEL) / (box.width - LABEL));
    const time = from + part * (to - from), factor = event.deltaY > 0 ? 1.25 : 0.8;
    from = Math.max(0, time - (time - from) * factor); to = Math.min(whole, time + (to - time) * factor);
    if (to - from < 0.01) to = from + 0.01;
    draw();
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", event => { drag = { x: event.clientX, from, to }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointermove", event => {
    hint.textContent = at(event);
    if (!drag) return;
    let shift = (drag.x - event.clientX) / (canvas.clientWidth - LABEL) * (drag.to - drag.from);
    shift = Math.max(-drag.from, Math.min(whole - drag.to, shift));
    from = drag.from + shift; to = drag.to + shift; draw();
  });
  canvas.addEventListener("dblclick", () => { from = 0; to = whole; draw(); });
  window.addEventListener("resize", draw);
  draw();
}
document.body.dataset.ready = "yes";
