"use strict";
{
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  const made = (name, kind, words = "") => Object.assign(document.createElement(name), { className: kind, textContent: words });

  // Methods that can be hidden.
  const bar = document.querySelector(".methods");
  if (bar) {
    bar.hidden = false;
    bar.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (!button) return;
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", shown);
      for (const part of all(`[data-method="${button.dataset.method}"]:not(button)`)) part.toggleAttribute("hidden", !shown);
    });
  }

  // Values under the pointer: a path has the points of a curve, and its figure says which values its axes go between.
  const watch = (svg) => {
    const [x, y] = [svg.dataset.x, svg.dataset.y].map((text) => text.split(" ").map(Number));
    const value = (place, [from, to, low, high]) => low + ((place - from) / (to - from)) * (high - low);
    const names = JSON.parse(svg.closest("figure").dataset.names);
    const lines = all('[data-part="line"]', svg).map((group) => {
      const path = group.querySelector("path[clip-path]");
      const numbers = (path?.getAttribute("d").match(/-?[\d.]+/g) ?? []).map(Number);
      const points = numbers.flatMap((at, i) => (i % 2 ? [] : [[at, numbers[i + 1]]]));
      return { group, path, points, name: names[group.dataset.method] };
    });
    const places = [...new Set(lines.flatMap(({ points }) => points.map(([at]) => at)))].sort((a, b) => a - b);
    if (!places.length) return;
    const rule = document.createElementNS(svg.namespaceURI, "path");
    rule.classList.add("rule");
    const tip = made("div", "tip");
    tip.setAttribute("role", "status");
    svg.append(rule);
    svg.parentElement.append(tip);
    let here = places.length - 1;

    const hide = () => [rule, tip].forEach((part) => part.toggleAttribute("hidden", true));
    const show = (index) => {
      here = Math.max(0, Math.min(places.length - 1, index));
      const at = places[here];
      const nearest = (points) => points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
      const found = lines
        .filter(({ group, points }) => points.length && !group.hasAttribute("hidden"))
        .map((line) => ({ ...line, point: nearest(line.points) }))
        .filter(({ point }) => Math.abs(point[0] - at) < 6)
        .sort((a, b) => a.point[1] - b.point[1]);
      if (!found.length) return hide();
      const where = Number(value(at, x).toPrecision(4)).toLocaleString("en");
      const rows = found.map(({ path, name, point }) => {
        const row = made("div", "");
        const mark = made("i", "");
        mark.style.background = getComputedStyle(path).stroke;
        row.append(mark, made("span", "", name), made("b", "", value(point[1], y).toFixed(svg.dataset.digits)));
        return row;
      });
      tip.replaceChildren(made("p", "", svg.dataset.unit === "round" ? `round ${where}` : `${where} ${svg.dataset.unit}`), ...rows);
      rule.setAttribute("d", `M ${at} ${y[0]} L ${at} ${y[1]}`);
      [rule, tip].forEach((part) => part.toggleAttribute("hidden", false));
      const left = (at / svg.viewBox.baseVal.width) * svg.clientWidth;
      tip.style.left = `${left < svg.clientWidth / 2 ? left + 18 : Math.max(0, left - tip.offsetWidth - 2)}px`;
    };
    const follow = ({ clientX, clientY }) => {
      const at = new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
      show(places.reduce((best, place, i) => (Math.abs(place - at) < Math.abs(places[best] - at) ? i : best), 0));
    };
    hide();
    svg.tabIndex = 0;
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      show(tip.hasAttribute("hidden") ? here : here + step);
    });
  };
  all("svg[data-x]").forEach(watch);

  // What scrolls says so.
  const boxes = all(".scroll, .card");
  const tell = () => boxes.forEach((box) => box.toggleAttribute("data-more", box.scrollLeft + box.clientWidth + 2 < box.scrollWidth));
  boxes.forEach((box) => box.addEventListener("scroll", tell, { passive: true }));
  addEventListener("resize", tell);
  tell();

  // A link into what is folded opens it.
  const open = () => document.getElementById(location.hash.slice(1))?.closest("section")?.querySelector(":scope > details")?.setAttribute("open", "");
  addEventListener("hashchange", open);
  open();

  addEventListener("beforeprint", () => all("details").forEach((part) => (part.open = true)));
}
