// Replaces the page's content every 30 s while it is visible. Without it, the page is the same and does not change.
"use strict";

const SECONDS = 30;
const control = document.getElementById("refresh");
control.closest("p").hidden = false;

async function refresh() {
  if (!control.checked || document.hidden) return;
  const stale = document.getElementById("stale");
  try {
    const answer = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(SECONDS * 500) });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of ["main", "#as-of"]) {
      document.querySelector(part).replaceWith(document.adoptNode(next.querySelector(part)));
    }
    stale.textContent = "";
  } catch (error) {
    stale.textContent = `Not refreshed: the server does not respond (${error.message}). The page shows an old state.`;
  }
}

setInterval(refresh, SECONDS * 1000);
document.addEventListener("visibilitychange", refresh);
