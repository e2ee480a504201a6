// Keeps the fields and the manifest of a new job in step: the server changes and checks what somebody types.
"use strict";

(() => {
  const PAUSE_MS = 250;
  const form = document.querySelector("form.new-job");
  const notice = document.getElementById("connection");
  let timer = 0;
  let request = null;

  if (!form) return;
  document.documentElement.classList.add("scripted");

  // What somebody has opened, closed or is typing stays as it is.
  const keep = {
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
  };

  const pending = new Set(); // names of fields that are not in the manifest yet

  async function update() {
    const mine = (request = new AbortController());
    const body = new URLSearchParams({ action: "edit", manifest: form.elements.manifest.value });
    for (const name of pending) body.set(name, form.elements[name].value);
    try {
      const answer = await fetch(form.getAttribute("action"), { method: "POST", body, signal: mine.signal, redirect: "error" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.querySelector("form.new-job");
      if (!found) throw new Error(String(answer.status));
      notice.hidden = true;
      if ("broken" in found.dataset) {
        // Not YAML at present: the fields stay as they are.
        document.getElementById("verdict").replaceWith(found.querySelector("#verdict"));
        return;
      }
      Idiomorph.morph(form, found, { morphStyle: "outerHTML", ignoreActiveValue: true, callbacks: keep });
      for (const name of pending) {
        if (form.elements[name]?.getAttribute("aria-invalid") !== "true") pending.delete(name);
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      notice.textContent = "The fields and the manifest are not in step: allranks ui does not answer. Type again to try again.";
      notice.hidden = false;
    }
  }

  // A click on Create right after typing includes what was typed.
  form.addEventListener("formdata", (event) => {
    clearTimeout(timer);
    if (request) request.abort();
    if (pending.size) event.formData.set("pending", [...pending].join("\n"));
  });

  form.addEventListener("input", (event) => {
    const name = event.target.name;
    if (request) request.abort();
    if (name === "manifest") pending.clear();
    else pending.add(name);
    clearTimeout(timer);
    timer = setTimeout(update, PAUSE_MS);
  });
})();
