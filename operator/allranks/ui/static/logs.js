// Appends the lines that a job writes, and stays at the end unless the user scrolls back.
"use strict";

(() => {
  const MOST_LINES = 10000;
  const MOST_CHARACTERS = 8 << 20;
  const RETRY_MS = 2000;
  const NEAR_PX = 40;
  const log = document.getElementById("log");
  const end = document.getElementById("log-end");
  const follow = document.getElementById("follow");
  const notice = document.getElementById("connection");
  let source = null;
  let retry = 0;
  let characters = log.textContent.length;

  function toEnd() {
    log.scrollTop = log.scrollHeight;
  }

  function append(lines) {
    if (!lines.length) return;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX;
    const made = document.createDocumentFragment();
    for (const line of lines) {
      const row = document.createElement("div");
      const who = document.createElement("b");
      who.textContent = `${line.role}-${line.index}`;
      if (line.time) row.title = `${line.time.slice(0, 23)}Z`;
      row.append(who, line.line); // text, never markup
      made.append(row);
    }
    characters += made.textContent.length;
    log.append(made);
    while (log.childElementCount > MOST_LINES || (characters > MOST_CHARACTERS && log.childElementCount > 1)) {
      characters -= log.firstElementChild.textContent.length;
      log.firstElementChild.remove();
    }
    end.textContent = "";
    if (atEnd) toEnd();
  }

  function open(address) {
    source = new EventSource(address);
    source.onopen = () => {
      notice.hidden = true;
    };
    source.addEventListener("lines", (event) => append(JSON.parse(event.data)));
    source.addEventListener("problem", (event) => {
      end.textContent = JSON.parse(event.data).detail;
    });
    source.addEventListener("end", () => {
      source.close();
      end.textContent ||= "The job has ended.";
    });
    source.onerror = () => {
      source.close();
      notice.textContent = "The connection to allranks ui is lost. Trying again.";
      notice.hidden = false;
      retry = setTimeout(reload, RETRY_MS);
    };
  }

  // Lines were missed: the end of the log is read again.
  async function reload() {
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.getElementById("log");
      if (!found) throw new Error(String(answer.status));
      log.replaceChildren(...found.childNodes);
      characters = log.textContent.length;
      toEnd();
      notice.hidden = true;
      if (found.dataset.follow) open(found.dataset.follow);
    } catch {
      retry = setTimeout(reload, RETRY_MS);
    }
  }

  toEnd();
  if (!follow) return;
  follow.addEventListener("change", () => {
    clearTimeout(retry);
    if (source) source.close();
    if (follow.checked) reload();
  });
  open(log.dataset.follow);
})();
