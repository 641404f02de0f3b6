// Keeps open pages fresh: asks for the page again and replaces the parts marked live. Pages work
// without it. Nothing is asked for while the page is hidden or somebody types in a live part.
"use strict";
const EVERY_MS = 1000;

async function refresh() {
  const answer = await fetch(location.href, {headers: {Accept: "text/html"}});
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll(".live")) {
    const next = fresh.getElementById(part.id);
    part.classList.remove("stale");
    if (!next || next.innerHTML === part.innerHTML || part.contains(document.activeElement)) continue;
    part.replaceChildren(...next.childNodes);
  }
  if (!fresh.body.dataset.live) delete document.body.dataset.live;
}

async function keepFresh() {
  while (document.body.dataset.live) {
    await new Promise((done) => setTimeout(done, EVERY_MS));
    if (document.hidden) continue;
    try {
      await refresh();
    } catch {  // the server is away: show that what stands here is old, and go on trying
      document.querySelectorAll(".live").forEach((part) => part.classList.add("stale"));
      await new Promise((done) => setTimeout(done, 4 * EVERY_MS));
    }
  }
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("change", (event) => {
  if (event.target.dataset.submit) event.target.form.submit();
});

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  const field = document.getElementById("filter");
  if (event.key === "/" && field && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    field.focus();
  }
});

keepFresh();
