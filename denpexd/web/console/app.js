// Keeps the page fresh: asks for the same page every two seconds and takes over what changed. No state, no other host.
"use strict";
(() => {
  const PERIOD = 2000;
  const live = document.getElementById("live");
  const status = document.getElementById("status");
  const button = document.getElementById("pause");
  let paused = false;

  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  const ago = () => {
    for (const element of document.querySelectorAll("time.ago")) {
      const seconds = Math.max(0, (Date.now() - Date.parse(element.dateTime)) / 1000);
      const [value, unit] = seconds < 60 ? [0, ""] : seconds < 3600 ? [seconds / 60, "min"]
        : seconds < 172800 ? [seconds / 3600, "h"] : [seconds / 86400, "days"];
      element.textContent = unit ? `${Math.floor(value)} ${unit} ago` : "just now";
    }
  };

  // Replacing what somebody reads with a screen reader, copies or scrolls would take it out of their hands.
  const inUse = () => {
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed) return true;
    const focus = document.activeElement;
    return focus !== live && live.contains(focus);
  };

  const refresh = async () => {
    if (paused || document.hidden) return;
    if (inUse()) { say("Held while you read"); return; }
    try {
      const answer = await fetch(location.href, { cache: "no-store", credentials: "same-origin" });
      if (!answer.ok) { say(`Not updated: denpexd answered ${answer.status}`); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("live");
      if (!fresh || paused || inUse()) return;
      if (fresh.innerHTML !== refresh.last) {
        refresh.last = fresh.innerHTML;
        live.replaceChildren(...fresh.childNodes);
        document.title = page.title;
      }
      ago();
      say("Live");
    } catch {
      say("Not updated: denpexd does not answer");
    }
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    say(paused ? "Paused" : "Live");
    refresh();
  });
  document.addEventListener("visibilitychange", refresh);
  refresh.last = live.innerHTML;
  ago();
  say("Live");
  const loop = async () => { await refresh(); setTimeout(loop, PERIOD); };
  setTimeout(loop, PERIOD);
})();
