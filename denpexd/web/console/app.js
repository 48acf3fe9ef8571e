// Makes a page live, and its buttons work. The server renders everything; events only tell that something changed.
// Ranks are the exception: there are too many to ask for again, so the board is drawn from what changed.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const main = $("main"), status = $("status"), button = $("pause");
  const body = document.body.dataset;
  const REFRESH = 1500, STALE = 10000, GIVE_UP = 6000;
  let paused = false;

  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  // --- time ---------------------------------------------------------------------------------------------------------
  const words = (seconds) => {
    const [value, unit] = seconds < 60 ? [0, ""] : seconds < 3600 ? [seconds / 60, "min"]
      : seconds < 172800 ? [seconds / 3600, "h"] : [seconds / 86400, "days"];
    return unit ? `${Math.floor(value)} ${unit} ago` : "just now";
  };
  const ago = () => {
    for (const element of document.querySelectorAll("time.ago")) {
      element.textContent = words(Math.max(0, (Date.now() - Date.parse(element.dateTime)) / 1000));
    }
  };

  // --- copying ------------------------------------------------------------------------------------------------------
  const copy = async (pressed) => {
    const text = pressed.parentElement.querySelector("pre").textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no clipboard without TLS beyond this machine
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      pressed.focus();
    }
    pressed.textContent = "Copied";
    setTimeout(() => { pressed.textContent = "Copy"; }, 2000);
  };
  const equip = (root) => {
    for (const element of root.querySelectorAll(".copy-it, .needs-js")) element.hidden = false;
  };
  const end = async (pressed) => {
    const answer = await fetch(`/api/v1/silences/${pressed.dataset.id}`, { method: "DELETE" }).catch(() => null);
    if (answer && answer.ok) pressed.replaceWith("ended");
    else say("denpexd did not end it");
  };
  document.addEventListener("click", (event) => {
    const pressed = event.target.closest("button");
    if (pressed && pressed.matches(".copy-it")) copy(pressed);
    if (pressed && pressed.matches(".end-silence")) end(pressed);
  });

  // --- forms that change something -----------------------------------------------------------------------------------
  const value = (field) => field.type !== "checkbox" ? field.value.trim()
    : field.value === "on" ? field.checked : field.checked ? field.value : "";
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.dataset.api) return;
    event.preventDefault();
    const sent = {}, match = {};
    for (const field of form.elements) {
      if (!field.name || value(field) === "") continue;
      if (field.name.startsWith("match.")) match[field.name.slice(6)] = value(field).replace(/[*?[]/g, "[$&]"); // no glob
      else sent[field.name] = value(field);
    }
    if (Object.keys(match).length) sent.match = match;
    const said = form.querySelector("[role=status]");
    try {
      const answer = await fetch(form.dataset.api, {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(sent),
      });
      const told = answer.ok ? {} : await answer.json().catch(() => ({}));
      said.textContent = answer.ok ? form.dataset.done : told.error || `denpexd answered ${answer.status}`;
      if (!answer.ok) return;
      try { if (sent.by) localStorage.setItem("by", sent.by); } catch { /* private window */ }
      refresh(true);
    } catch {
      said.textContent = "denpexd does not answer";
    }
  });
  const remember = () => {
    let name = "";
    try { name = localStorage.getItem("by") || ""; } catch { /* private window */ }
    for (const field of document.querySelectorAll("input[name=by]")) if (!field.value) field.value = name;
  };

  // --- staying fresh ------------------------------------------------------------------------------------------------
  // Replacing what somebody reads with a screen reader, copies or fills in would take it out of their hands.
  const inUse = (element) => {
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && selection.containsNode(element, true)) return true;
    const focus = document.activeElement;
    return focus && focus !== document.body && element.contains(focus);
  };
  const parts = (root) => Array.from(root.querySelectorAll("[id]"))
    .filter((part) => !part.closest("[data-own]") && !part.parentElement.closest("main [id]"));
  const known = new Map(parts(main).map((part) => [part.id, part.outerHTML])); // as the server made them
  const take = (fresh) => {
    for (const part of parts(fresh)) {
      const here = $(part.id), made = part.outerHTML;
      if (!here || !main.contains(here) || made === known.get(part.id) || inUse(here)) continue;
      known.set(part.id, made);
      equip(part);
      here.replaceWith(part);
    }
  };
  let asking = false, again = false, last = 0;
  const refresh = async (now = false) => {
    if ((paused && !now) || document.hidden) return;
    if (asking) { again = true; return; }
    asking = true;
    again = false;
    try {
      const page = new URL(location.href);
      page.searchParams.set("grid", "none");
      page.hash = "";
      const answer = await fetch(body.job ? page : location.href, { cache: "no-store", credentials: "same-origin" });
      if (!answer.ok) { say(`Not updated: denpexd answered ${answer.status}`); return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      take(fresh.getElementById("main"));
      document.title = fresh.title;
      ago();
      last = Date.now();
    } catch {
      say("Not updated: denpexd does not answer");
    } finally {
      asking = false;
      if (again) setTimeout(refresh, REFRESH);
    }
  };
  let waiting = 0;
  const soon = () => {
    if (waiting) return;
    waiting = setTimeout(() => { waiting = 0; refresh(); }, Math.max(0, last + REFRESH - Date.now()));
  };

  // --- the board ----------------------------------------------------------------------------------------------------
  const board = (() => {
    const grid = $("grid");
    if (!grid) return null;
    const wide = Number(grid.dataset.wide), pitch = Number(grid.dataset.pitch), side = pitch - 1;
    const svg = grid.querySelector("svg"), cursor = $("cursor"), told = $("rank");
    const paths = new Map(Array.from(svg.querySelectorAll("path"), (path) => [path.dataset.state, path]));
    const texts = svg.querySelectorAll("text");
    let states = [], numbers = [], cells = [], at = -1, chosen = "";

    const draw = (touched) => {
      const parts = new Map();
      for (const state of touched) parts.set(state, []);
      cells.forEach(([state], place) => {
        const found = parts.get(state);
        if (found) found.push(`M${place % wide * pitch} ${Math.floor(place / wide) * pitch}h${side}v${side}h-${side}z`);
      });
      for (const [state, found] of parts) paths.get(state).setAttribute("d", found.join(""));
      if (texts.length === cells.length) texts.forEach((text, place) => {
        const name = `t-${cells[place][0]}${cells[place][0] === chosen ? " chosen" : ""}`;
        if (text.getAttribute("class") !== name) text.setAttribute("class", name);
      });
      const counts = new Map();
      for (const [state] of cells) counts.set(state, (counts.get(state) || 0) + 1);
      for (const chip of document.querySelectorAll(".chip")) {
        const count = counts.get(chip.dataset.state) || 0;
        chip.parentElement.hidden = !count && chip.dataset.state !== chosen;
        chip.querySelector("b").textContent = count.toLocaleString("en");
      }
    };
    const put = (runs) => {
      const touched = new Set();
      for (const [first, length, state, phase, lag] of runs) {
        for (let place = first; place < first + length; place += 1) {
          if (cells[place]) touched.add(cells[place][0]);
          cells[place] = [states[state], phase, lag];
        }
        touched.add(states[state]);
      }
      draw(touched);
      if (at >= 0) brief(at);
    };
    const brief = (place) => {
      const [state, phase, lag] = cells[place];
      told.textContent = `rank ${numbers[place]}: ${state}` + (phase ? `, ${phase}` : "")
        + (lag === null ? "" : lag ? `, ${lag} steps behind` : ", at the front");
    };
    const detail = async (place) => {
      try {
        const answer = await fetch(`/api/v1/jobs/${body.job}/ranks/${numbers[place]}`);
        if (!answer.ok || place !== at) return;
        const rank = await answer.json();
        told.textContent = `rank ${rank.rank}: ${rank.state}` + (rank.phase ? `, ${rank.phase}` : "")
          + (rank.step === null ? "" : `, step ${rank.step}`) + (rank.node ? `, on ${rank.node}` : "")
          + (rank.pid === null ? "" : `, pid ${rank.pid}`)
          + (rank.silent_for === null ? ", never heard" : `, last line ${Math.round(rank.silent_for)} s ago`);
      } catch { /* the next one may answer */ }
    };
    let later = 0;
    const go = (place) => {
      if (!(place in cells)) return;
      at = place;
      cursor.setAttribute("x", place % wide * pitch);
      cursor.setAttribute("y", Math.floor(place / wide) * pitch);
      cursor.setAttribute("visibility", "visible");
      brief(place);
      clearTimeout(later);
      later = setTimeout(() => detail(place), 200);
    };
    grid.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide }[event.key];
      const place = event.key === "Home" ? 0 : event.key === "End" ? cells.length - 1 : step ? Math.max(at, 0) + (at < 0 ? 0 : step) : -1;
      if (!step && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      go(place);
    });
    const under = (event) => {
      const box = svg.getBoundingClientRect(), scale = (wide * pitch + 1) / box.width;
      const x = Math.floor(((event.clientX - box.left) * scale - 1) / pitch);
      const y = Math.floor(((event.clientY - box.top) * scale - 1) / pitch);
      return x >= 0 && x < wide && y >= 0 ? y * wide + x : -1;
    };
    svg.addEventListener("pointermove", (event) => { const place = under(event); if (place !== at) go(place); });
    svg.addEventListener("click", (event) => go(under(event)));
    $("legend").addEventListener("click", (event) => {
      const chip = event.target.closest(".chip");
      if (!chip) return;
      chosen = chosen === chip.dataset.state ? "" : chip.dataset.state;
      for (const other of document.querySelectorAll(".chip")) other.setAttribute("aria-pressed", String(other.dataset.state === chosen));
      for (const [state, path] of paths) path.classList.toggle("chosen", state === chosen);
      texts.forEach((text) => text.classList.toggle("chosen", text.classList.contains(`t-${chosen}`)));
      grid.classList.toggle("only", Boolean(chosen));
    });
    return {
      all(told) {
        states = told.states;
        const count = told.ranks.reduce((sum, [first, last]) => sum + last - first + 1, 0);
        if (cells.length && cells.length !== count) { location.reload(); return; } // another size, another picture
        numbers = told.ranks.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, n) => first + n));
        cells = new Array(count);
        put(told.runs);
        grid.dataset.ready = "yes";
      },
      some(told) { if (cells.length) put(told.runs); },
    };
  })();

  // --- events -------------------------------------------------------------------------------------------------------
  let source = null, lost = 0;
  const concerns = {
    jobs: (told) => !body.incident && (!body.job || told.jobs.some((job) => job.job === decodeURIComponent(body.job))),
    incident: (told) => !body.incident || told.key === body.incident,
    pace: () => Boolean(body.job),
  };
  const listen = () => {
    if (source || paused || document.hidden || !body.events) return;
    source = new EventSource(body.events);
    source.onopen = () => { clearTimeout(lost); lost = 0; say("Live"); };
    source.onerror = () => { if (!lost) lost = setTimeout(() => say("Not live: denpexd does not answer"), GIVE_UP); };
    source.addEventListener("all", (event) => {
      const told = JSON.parse(event.data);
      if (board && told.board) board.all(told.board);
      soon(); // what changed since the page was made is told by nobody else
    });
    source.addEventListener("board", (event) => { if (board) board.all(JSON.parse(event.data)); soon(); });
    source.addEventListener("ranks", (event) => { if (board) board.some(JSON.parse(event.data)); soon(); });
    for (const [kind, concern] of Object.entries(concerns)) {
      source.addEventListener(kind, (event) => { if (concern(JSON.parse(event.data))) soon(); });
    }
  };
  const leave = () => {
    if (source) source.close();
    source = null;
    clearTimeout(lost);
    lost = 0;
  };
  if (body.events) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.setAttribute("aria-pressed", String(paused));
      if (paused) { leave(); say("Paused"); } else { listen(); refresh(); }
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) leave(); else { listen(); refresh(); }
    });
    addEventListener("pagehide", leave);
    listen();
    setInterval(() => { ago(); if (Date.now() - last > STALE) refresh(); }, STALE);
  }
  equip(document);
  remember();
  ago();
})();
