// Keeps open pages fresh: asks for the page again and changes what differs in the parts marked
// live. Pages work without it. Nothing is asked for while the page is hidden.
"use strict";
const EVERY_MS = 1000;

// Changes a node into another, in place: focus, selection, scrolling and opened details stay.
function change(old, next) {
  if (old.isEqualNode(next)) return;
  if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== next.nodeName) {
    old.replaceWith(next.cloneNode(true));
    return;
  }
  for (const {name} of [...old.attributes]) {
    if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const {name, value} of next.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const fresh = [...next.childNodes];
  while (old.childNodes.length > fresh.length) old.lastChild.remove();
  fresh.forEach((child, index) => {
    if (index < old.childNodes.length) change(old.childNodes[index], child);
    else old.append(child.cloneNode(true));
  });
}

async function refresh() {
  const answer = await fetch(location.href, {headers: {Accept: "text/html"}});
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll(".live")) {
    const next = fresh.getElementById(part.id);
    part.classList.remove("stale");
    if (next) change(part, next);
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
