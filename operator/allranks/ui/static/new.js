// Checks the manifest of a new job while somebody types, and asks before the page is left with unsaved text.
"use strict";

(() => {
  const PAUSE_MS = 300;
  const form = document.querySelector("form.new-job");
  const notice = document.getElementById("connection");
  if (!form) return;
  const text = form.elements.manifest;
  const problems = document.getElementById("problems");
  let timer = 0;
  let request = new AbortController();
  let submitted = false;

  async function check() {
    request.abort();
    const { signal } = (request = new AbortController());
    try {
      const body = new URLSearchParams({ manifest: text.value });
      const answer = await fetch(form.dataset.problems, { method: "POST", body, signal, redirect: "error" });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("problems");
      if (found) problems.replaceChildren(...found.childNodes);
      notice.hidden = Boolean(found);
      notice.textContent =
        answer.status === 401
          ? "Your session has ended: sign in in another tab, and continue here."
          : `The manifest is not checked: allranks ui answers with status ${answer.status}.`;
    } catch (error) {
      if (error.name === "AbortError") return;
      notice.textContent = "The manifest is not checked: allranks ui does not answer. Type again to try again.";
      notice.hidden = false;
    }
  }

  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE_MS);
  });

  // Selects the line of a problem, and scrolls to it.
  problems.addEventListener("click", (event) => {
    const number = Number(event.target.dataset.line);
    if (!number) return;
    event.preventDefault();
    const lines = text.value.split("\n");
    const begin = lines.slice(0, number - 1).join("\n").length + (number > 1);
    text.focus();
    text.setSelectionRange(begin, begin + lines[number - 1].length);
    text.scrollTop = (text.scrollHeight / lines.length) * (number - 4);
  });

  form.addEventListener("submit", () => {
    submitted = true;
    clearTimeout(timer);
    request.abort();
  });

  window.addEventListener("beforeunload", (event) => {
    const changed = "typed" in form.dataset || text.value !== text.defaultValue;
    if (changed && !submitted) event.preventDefault();
  });
})();
