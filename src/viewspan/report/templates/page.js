"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const repaint = [];

  // Theme: auto follows the system; light and dark stay until changed.
  const themes = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  let theme = "auto";
  try { theme = localStorage.getItem("viewspan-theme") || "auto"; } catch { /* storage may be closed to files */ }
  function applyTheme() {
    if (!themes.includes(theme)) theme = "auto";
    root.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
    button.textContent = "Theme: " + theme;
    repaint.forEach((paint) => paint());
  }
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("viewspan-theme", theme); } catch { /* as above */ }
    applyTheme();
  });
  dark.addEventListener("change", applyTheme);
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; repaint.forEach((paint) => paint()); });
  addEventListener("afterprint", applyTheme);

  // Tables: a click on a heading sorts by it, a second one turns the order round.
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const control = head.querySelector("button");
      if (!control) return;
      control.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
        const number = (text) => (text === "-inf" ? -Infinity : text.trim() === "" ? NaN : Number(text));
        const rows = [...table.tBodies[0].rows];
        const numeric = rows.every((row) => !Number.isNaN(number(key(row))));
        rows.sort((a, b) => numeric ? number(key(a)) - number(key(b)) || 0 : key(a).localeCompare(key(b), undefined, { numeric: true }));
        if (down) rows.reverse();
        table.tBodies[0].append(...rows);
      });
    });
  }

  // Spheres: the same turn for all, the colour of a dot is its latent's.
  const PALETTE = [[68, 1, 84], [72, 40, 120], [62, 73, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37]];
  function shade(t, night) {
    const x = (night ? 0.16 + 0.84 * t : 0.9 * t) * (PALETTE.length - 1);
    const i = Math.min(PALETTE.length - 2, Math.floor(x));
    const mix = PALETTE[i].map((c, k) => Math.round(c + (x - i) * (PALETTE[i + 1][k] - c)));
    return `rgb(${mix.join(",")})`;
  }
  function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Float32Array.from({ length: bytes.length / 2 }, (_, i) => view.getInt16(2 * i, true) / 20000);
  }

  class Spheres {
    constructor(box, held) {
      this.box = box; this.held = held; this.angle = 0.6; this.tilt = -0.35; this.turning = false; this.visible = false;
      this.points = new Map();
      this.balls = box.querySelector(".balls");
      this.group = box.querySelector(".group");
      this.colour = box.querySelector(".colour");
      this.turn = box.querySelector(".turn");
      for (const name of new Set(held.spheres.map((s) => s.group))) {
        const option = document.createElement("option");
        option.value = name; option.textContent = name.replaceAll("_", " ");
        this.group.append(option);
      }
      this.group.closest("label").hidden = this.group.options.length < 2;
      this.group.addEventListener("change", () => this.build());
      this.colour.addEventListener("change", () => this.paint());
      this.turn.addEventListener("click", () => this.setTurning(!this.turning));
      new IntersectionObserver((seen) => { this.visible = seen.some((s) => s.isIntersecting); this.step(); }).observe(box);
      new ResizeObserver(() => this.paint()).observe(this.balls);
      repaint.push(() => this.paint());
      this.build();
      this.setTurning(!matchMedia("(prefers-reduced-motion: reduce)").matches);
    }
    setTurning(on) {
      this.turning = on;
      this.turn.setAttribute("aria-pressed", String(on));
      this.turn.textContent = on ? "Hold still" : "Turn";
      this.step();
    }
    get(text) {
      if (!this.points.has(text)) this.points.set(text, unpack(text));
      return this.points.get(text);
    }
    build() {
      const chosen = this.held.spheres.filter((s) => s.group === this.group.value);
      this.drawn = [];
      this.balls.replaceChildren();
      const latents = chosen.length ? this.held.latents[chosen[0].latents] : null;
      if (latents) this.add("latents", latents, latents);
      for (const s of chosen) this.add(s.label, s.points, this.held.latents[s.latents]);
      this.box.querySelector(".how").textContent = chosen.length ? "Shown: " + chosen[0].how + "." : "";
      this.paint();
    }
    add(label, points, latents) {
      const figure = document.createElement("figure");
      const canvas = document.createElement("canvas");
      const caption = document.createElement("figcaption");
      figure.className = "ball";
      caption.textContent = label;
      canvas.tabIndex = 0;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", label + ": points on a sphere; arrow keys turn it");
      canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); this.from = [e.clientX, e.clientY]; this.setTurning(false); });
      canvas.addEventListener("pointermove", (e) => {
        if (!this.from) return;
        this.move((e.clientX - this.from[0]) / 90, (e.clientY - this.from[1]) / 90);
        this.from = [e.clientX, e.clientY];
      });
      for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) canvas.addEventListener(end, () => { this.from = null; });
      canvas.addEventListener("keydown", (e) => {
        const by = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] }[e.key];
        if (!by) return;
        e.preventDefault();
        this.setTurning(false);
        this.move(...by);
      });
      figure.append(canvas, caption);
      this.balls.append(figure);
      this.drawn.push({ canvas, points: this.get(points), latents: this.get(latents) });
    }
    move(across, down) {
      this.angle += across;
      this.tilt = Math.max(-1.5, Math.min(1.5, this.tilt + down));
      this.paint();
    }
    step() {
      if (!this.turning || !this.visible || this.waiting) return;
      this.waiting = true;
      requestAnimationFrame((now) => {
        this.waiting = false;
        this.angle += Math.min(0.05, (now - (this.last ?? now)) / 2600);
        this.last = now;
        this.paint();
        this.step();
      });
    }
    paint() {
      const night = root.dataset.theme === "dark";
      const column = Number(this.colour.value);
      for (const ball of this.drawn) this.paintOne(ball, column, night);
    }
    paintOne({ canvas, points, latents }, column, night) {
      const size = Math.round(canvas.clientWidth * Math.min(2, devicePixelRatio || 1));
      if (!size) return;
      if (canvas.width !== size) { canvas.width = size; canvas.height = size; }
      const pen = canvas.getContext("2d");
      const half = size / 2, radius = 0.44 * size;
      const [sa, ca, st, ct] = [Math.sin(this.angle), Math.cos(this.angle), Math.sin(this.tilt), Math.cos(this.tilt)];
      pen.clearRect(0, 0, size, size);
      const light = pen.createRadialGradient(half - radius / 3, half - radius / 3, radius / 8, half, half, radius);
      light.addColorStop(0, night ? "#2b3441" : "#ffffff");
      light.addColorStop(1, night ? "#181e27" : "#e9ecf1");
      pen.fillStyle = light;
      pen.beginPath(); pen.arc(half, half, radius, 0, 2 * Math.PI); pen.fill();
      pen.lineWidth = size / 400; pen.strokeStyle = night ? "#4a5667" : "#c3cad4"; pen.stroke();
      const n = points.length / 3;
      const dots = new Array(n);
      for (let i = 0; i < n; i++) {
        // the first latent is the vertical axis
        const up = points[3 * i], x = points[3 * i + 1], y = points[3 * i + 2];
        const right = ca * x + sa * y, deep = -sa * x + ca * y;
        dots[i] = [right, ct * up + st * deep, ct * deep - st * up, latents[3 * i + column]];
      }
      dots.sort((a, b) => a[2] - b[2]);
      for (const [x, y, deep, value] of dots) {
        pen.globalAlpha = deep < 0 ? 0.16 : 0.92;
        pen.fillStyle = shade(Math.max(0, Math.min(1, (value + 1) / 2)), night);
        pen.beginPath();
        pen.arc(half + radius * x, half - radius * y, (size / 120) * (deep < 0 ? 0.8 : 1), 0, 2 * Math.PI);
        pen.fill();
      }
      pen.globalAlpha = 1;
      canvas.dataset.angle = this.angle.toFixed(3);
    }
  }

  applyTheme();
  for (const box of document.querySelectorAll(".spheres")) new Spheres(box, data.sections[Number(box.dataset.section)]);
})();
