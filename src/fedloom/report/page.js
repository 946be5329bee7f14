"use strict";
{
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  const made = (name, kind, words = "") => Object.assign(document.createElement(name), { className: kind, textContent: words });

  // Tables that sort: by a head, first high numbers or the beginning of the alphabet, then the reverse, then as before.
  const amount = (text) => (/^[+-]?\d/.test(text) ? Number.parseFloat(text.replaceAll(",", "")) : NaN);
  const sortable = (table) => {
    const [body] = table.tBodies;
    const rows = [...body.rows];
    if (rows.length < 3) return;
    for (const head of all("thead tr:last-child th", table)) {
      const button = made("button", "sort");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const found = rows.map((row) => ({ row, text: row.cells[head.cellIndex].textContent.trim() }));
      const isNumeric = found.some(({ text }) => !Number.isNaN(amount(text)));
      const orders = isNumeric ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
      button.addEventListener("click", () => {
        const order = orders[(orders.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
        for (const other of all("[aria-sort]", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", order);
        const up = order === "ascending" ? 1 : -1;
        const compare = (a, b) => {
          if (!isNumeric) return up * a.text.localeCompare(b.text);
          const [one, other] = [amount(a.text), amount(b.text)];
          return Number.isNaN(one) || Number.isNaN(other) ? Number.isNaN(one) - Number.isNaN(other) : up * (one - other);
        };
        body.append(...(order === "none" ? found : [...found].sort(compare)).map(({ row }) => row));
      });
    }
  };
  all("table").forEach(sortable);

  // Methods that can be hidden.
  const bar = document.querySelector(".methods");
  if (bar) {
    bar.hidden = false;
    const leave = () => { document.documentElement.style.scrollPaddingTop = `${bar.offsetHeight + 8}px`; }; // it stays above what a link leads to
    addEventListener("resize", leave);
    new ResizeObserver(leave).observe(bar);
    bar.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (!button) return;
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", shown);
      for (const part of all(`[data-method="${button.dataset.method}"]:not(button)`)) part.toggleAttribute("hidden", !shown);
    });
  }

  // Values under the pointer: a path has the points of a curve, and its figure says which values its axes go between.
  const value = (place, [from, to, low, high]) => low + ((place - from) / (to - from)) * (high - low);
  const path_of = (points) => points.map((point, i) => `${i ? "L" : "M"} ${point.join(" ")}`).join(" ");
  const points_of = (path) => {
    const numbers = (path?.getAttribute("d").match(/-?[\d.]+/g) ?? []).map(Number);
    return numbers.flatMap((at, i) => (i % 2 ? [] : [[at, numbers[i + 1]]]));
  };
  const files_over = document.querySelector("main").dataset.over;
  const axes = Object.fromEntries(all(".axes").map((script) => [script.dataset.prefix, JSON.parse(script.textContent)]));
  const watch = (svg) => {
    const [rounds, y] = [svg.dataset.x, svg.dataset.y].map((text) => text.split(" ").map(Number));
    let [x, unit, word] = [rounds, svg.dataset.unit, files_over];
    const names = JSON.parse(svg.closest("figure").dataset.names);
    const lines = all('[data-part="line"]', svg).map((group) => {
      const path = group.querySelector("path[clip-path]");
      const points = points_of(path);
      return { group, path, dashes: ["stroke-dasharray", "stroke-dashoffset"].map((name) => path?.getAttribute(name)), points, drawn: points, measured: points, name: names[group.dataset.method] };
    });
    const measured_places = () => [...new Set(lines.flatMap(({ measured }) => measured.map(([at]) => at)))].sort((a, b) => a - b);
    let places = measured_places();
    if (!places.length) return null;
    const note = made("p", "smoothed");
    svg.parentElement.append(note);
    let width = 1;
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
      const of = width > 1 ? `, mean of ${width}` : "";
      tip.replaceChildren(made("p", "", (unit === "round" ? `round ${where}` : `${where} ${unit}`) + of), ...rows);
      rule.setAttribute("d", `M ${at} ${y[0]} L ${at} ${y[1]}`);
      [rule, tip].forEach((part) => part.toggleAttribute("hidden", false));
      const left = (at / svg.viewBox.baseVal.width) * svg.clientWidth;
      tip.style.left = `${left < svg.clientWidth / 2 ? left + 18 : Math.max(0, left - tip.offsetWidth - 2)}px`;
    };
    const follow = ({ clientX, clientY }) => {
      const at = new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
      show(places.reduce((best, place, i) => (Math.abs(place - at) < Math.abs(places[best] - at) ? i : best), 0));
    };
    const smooth = (count) => {
      width = count;
      for (const line of lines) {
        line.points = line.measured.map(([at], i, of) => {
          const half = Math.min((width - 1) / 2, i, of.length - 1 - i); // so that a line ends where it was measured
          const near = of.slice(i - half, i + half + 1);
          return [at, near.reduce((sum, [, height]) => sum + height, 0) / near.length];
        });
        line.path?.setAttribute("d", path_of(line.points));
      }
      const smoothed = `Lines smoothed: mean of ${width} points, of fewer towards the ends. Bands, tables and files: as measured.`;
      const said = [...(width > 1 ? [smoothed] : []), ...(word === files_over ? [] : [`Files: over ${files_over.replace("_", " ")}.`])];
      note.textContent = said.join(" ");
      note.toggleAttribute("hidden", !said.length);
      hide();
    };
    smooth(1);

    // Curves over rounds, drawn over what had been spent after each round.
    const along = svg.querySelector('[data-axis="x"]');
    const [ticks, label] = [[...along.children].slice(0, -1), along.lastElementChild.querySelector("text")];
    const bands = all('[data-part="band"]', svg).map((group) => {
      const path = group.querySelector("path");
      return { path, number: group.dataset.method, drawn: points_of(path) };
    });
    const over = (chosen) => {
      const axis = axes[svg.dataset.axes]?.[chosen];
      if (svg.dataset.axes === undefined || !(axis || chosen === "rounds")) return;
      const spent = Object.fromEntries(Object.entries(axis?.of ?? {}).map(([number, [all_rounds, values]]) => [number, new Map(all_rounds.map((t, i) => [t, values[i]]))]));
      const at = (place, number) => (axis ? (spent[number] ?? spent[""]).get(Math.round(value(place, rounds))) : value(place, rounds));
      const high = axis ? Math.max(...lines.map(({ drawn, group }) => (drawn.length ? at(drawn.at(-1)[0], group.dataset.method) : 0))) || 1 : rounds[3];
      [x, unit, word] = [[rounds[0], rounds[1], 0, high], axis?.label ?? "round", chosen];
      const place = (amount) => x[0] + ((x[1] - x[0]) * amount) / high;
      const moved = (points, number) => points.map(([from, height]) => [place(at(from, number)), height]);
      for (const line of lines) {
        line.measured = moved(line.drawn, line.group.dataset.method);
        all("use", line.group).forEach((dot, i) => dot.setAttribute("x", line.measured[i][0]));
      }
      const texts = lines.map(({ measured }) => path_of(measured));
      for (const [i, { group, path, dashes }] of lines.entries()) {
        const same = texts.flatMap((text, k) => (text === texts[i] ? [k] : [])); // they take turns in dashes, others do not
        const own = document.querySelector(`.methods [data-method="${group.dataset.method}"] line`);
        const turns = same.length > 1 ? [`7.2 ${7.2 * (same.length - 1)}`, 7.2 * same.indexOf(i)] : [own?.getAttribute("stroke-dasharray"), 0];
        const [pattern, offset] = axis && own ? turns : dashes;
        path?.setAttribute("stroke-dasharray", pattern ?? "none");
        path?.setAttribute("stroke-dashoffset", offset ?? 0);
      }
      for (const { path, number, drawn } of bands) path.setAttribute("d", `${path_of(moved(drawn, number))} z`);
      all("[data-made]", along).forEach((tick) => tick.remove());
      ticks.forEach((tick) => tick.toggleAttribute("hidden", Boolean(axis)));
      const power = 10 ** Math.floor(Math.log10(high / 6));
      const step = power * [1, 2, 5, 10].find((digit) => digit * power * 6 >= high);
      for (let i = 0; axis && i * step <= high * (1 + 1e-9); i += 1) {
        const tick = ticks[0].cloneNode(true);
        all("defs", tick).forEach((part) => part.remove());
        tick.removeAttribute("hidden");
        tick.dataset.made = "";
        const text = tick.querySelector("text");
        tick.setAttribute("transform", `translate(${place(i * step) - Number(text.getAttribute("x"))} 0)`);
        text.textContent = Number((i * step).toPrecision(12));
        along.append(tick);
      }
      label.textContent = unit;
      places = measured_places();
      smooth(width);
    };
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
    return { smooth, over };
  };
  const curves = all("svg[data-x]").map(watch).filter(Boolean);
  if (curves.length) {
    const [label, select] = [made("label", "choice", "Smoothing "), made("select", "")];
    for (const count of [1, 3, 5, 9, 15]) select.append(new Option(count === 1 ? "off" : `mean of ${count}`, count));
    select.addEventListener("change", () => curves.forEach(({ smooth }) => smooth(Number(select.value))));
    label.append(select);
    const words = [...new Set(["rounds", ...Object.values(axes).flatMap(Object.keys)])];
    const [over_label, over_select] = [made("label", "choice over", "Over "), made("select", "")];
    for (const word of words) over_select.append(new Option(word.replace("_", " "), word));
    const draw = () => curves.forEach(({ over }) => over(over_select.value));
    over_select.addEventListener("change", draw);
    over_select.value = files_over;
    if (files_over !== "rounds") draw();
    over_label.append(over_select);
    const choices = words.length > 1 ? [over_label, label] : [label];
    (bar ?? document.querySelector("main")).prepend(...choices); // first, where a bar of many methods scrolls
  }

  // One run, one client: their numbers stand in the page as JSON.
  const box = (heads, rows, name) => {
    const [scroll, table] = [made("div", "scroll tall"), made("table", "")];
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", name);
    const line = table.createTHead().insertRow();
    const columns = heads.map((_, i) => rows.map((row) => row[i]).filter((value) => value !== null && value !== undefined));
    const kinds = columns.map((values) => (values.every((value) => typeof value === "number") ? "" : "text"));
    const digits = columns.map((values) => Math.max(0, ...values.map((value) => String(value).split(".")[1]?.length ?? 0)));
    heads.forEach((head, i) => line.append(Object.assign(made("th", kinds[i], head), { scope: "col" })));
    const body = table.createTBody();
    for (const row of rows) {
      const tr = body.insertRow();
      row.forEach((value, i) => {
        const cell = tr.insertCell();
        cell.className = kinds[i];
        cell.append(typeof value === "number" ? value.toFixed(digits[i]) : (value ?? "–"));
      });
    }
    sortable(table);
    scroll.append(table);
    return scroll;
  };
  const spark = (values) => {
    const known = values.filter((value) => value !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const points = values.flatMap((value, i) => (value === null ? [] : [`${(100 * i) / Math.max(1, values.length - 1)},${19 - (18 * (value - low)) / (high - low || 1)}`]));
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 100 20", class: "spark", role: "img", "aria-label": `from ${known[0]} to ${known.at(-1)}, lowest ${low}, highest ${high}` })) svg.setAttribute(name, value);
    const path = document.createElementNS(svg.namespaceURI, "polyline");
    path.setAttribute("points", points.join(" "));
    svg.append(path);
    return svg;
  };
  const listed = (values) => {
    const list = document.createElement("dl");
    for (const [name, value] of Object.entries(values)) {
      const part = document.createElement("div");
      part.append(made("dt", "", name), made("dd", "", value));
      list.append(part);
    }
    return list;
  };
  for (const view of all(".view")) {
    const data = JSON.parse(view.querySelector("script").textContent);
    const [shown, runs, clients] = [made("div", ""), made("select", ""), made("select", "")];
    const chosen = () => data.runs[runs.value];
    const go = (run, client) => {
      runs.value = run;
      const names = Object.keys(chosen().clients);
      clients.replaceChildren(new Option("all", ""), ...names.map((k) => new Option(data.federations[chosen().federation][k]?.[0] || k, k)));
      clients.value = names.includes(client) ? client : "";
      draw();
    };
    const link = (words, run, client) => {
      const button = made("button", "sort", words);
      button.addEventListener("click", () => go(run, client));
      return button;
    };
    const numbers = (run, client) => {
      const [value, gain, asked, lost, curve] = run.clients[client];
      return [value, gain, asked, lost, spark(curve)];
    };
    const heads = [data.title, data.gain, "asked", "lost", "over rounds"];
    const draw = () => {
      const [run, client] = [chosen(), clients.value];
      const held = data.federations[run.federation];
      const parts = [];
      if (client) {
        const [name, examples, classes] = held[client] ?? ["", null, ""];
        parts.push(made("p", "", `Client ${client}${name ? `, ${name}` : ""}${examples === null ? "" : `, in this run ${examples} training examples (${classes})`}. Its model in every run, on what it holds out:`));
        const rows = data.runs.flatMap((other, i) => (client in other.clients ? [[link(other.run, i, client), other.seed, ...numbers(other, client)]] : []));
        parts.push(box(["run", "seed", ...heads], rows, `client ${client} in every run`));
      } else {
        parts.push(made("p", "", `${run.method}, seed ${run.seed ?? "unknown"}. ${Object.keys(run.settings).length ? "Settings that not all runs share:" : "All runs share its settings."}`), listed(run.settings));
        const all_of = document.createElement("details");
        all_of.append(made("summary", "", "Settings that all runs share"), listed(data.shared));
        parts.push(all_of, made("h3", "", data.step > 1 ? `Rounds, one of ${data.step}` : "Rounds"), box(data.heads, run.rounds, "rounds"));
        const rows = Object.keys(run.clients).map((k) => [link(held[k]?.[0] || k, runs.value, k), held[k]?.[1], held[k]?.[2], ...numbers(run, k)]);
        if (rows.length) parts.push(made("h3", "", data.clients ? `The first ${rows.length} clients` : "Clients"), box(["client", "examples", "classes", ...heads], rows, "clients"));
      }
      shown.replaceChildren(...parts);
    };
    data.runs.forEach((run, i) => runs.append(new Option(run.run, i)));
    runs.addEventListener("change", () => go(runs.value, clients.value));
    clients.addEventListener("change", draw);
    for (const [name, select] of [["Run ", runs], ["Client ", clients]]) {
      const label = made("label", "choice", name);
      label.append(select);
      view.append(label);
    }
    view.append(shown);
    view.hidden = false;
    view.nextElementSibling.hidden = true;
    go(0, "");
  }

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
