// Loads the page again when the server says that something has changed, and exchanges only what differs.
"use strict";

(() => {
  const REFRESH_MS = 15000; // ages and pods change without a change of the job
  const RETRY_MS = 2000;
  const stream = document.body.dataset.stream;
  const notice = document.getElementById("connection");
  let source = null;
  let loading = false;
  let again = false;
  let retry = 0;
  let lost = false;

  function say(text) {
    notice.textContent = text;
    notice.hidden = !text;
  }

  // What the user has opened stays open, and what the user has selected stays selected.
  const keep = {
    beforeAttributeUpdated: (name, node) =>
      !(name === "open" && node.tagName === "DETAILS") && !(name === "checked" && node.name === "job"),
    // What another script has drawn stays; that script loads its data again.
    beforeNodeMorphed: (node) => !(node.dataset && "drawn" in node.dataset),
  };

  async function refresh() {
    if (loading) {
      again = true;
      return;
    }
    loading = true;
    try {
      do {
        again = false;
        const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
        if (answer.status === 401) {
          say("signedIn" in document.body.dataset
            ? "You are no longer signed in. This page is not current. Load it again to sign in."
            : "This page belongs to a server that has ended: open the address that the new one printed.");
          return;
        }
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const found = page.getElementById("live");
        if (!found) continue;
        document.title = page.title;
        const place = document.getElementById("live");
        Idiomorph.morph(place, found, { morphStyle: "outerHTML", ignoreActiveValue: true, callbacks: keep });
        document.dispatchEvent(new Event("refreshed"));
        if (!lost) say("");
      } while (again);
    } catch {
      lose();
    } finally {
      loading = false;
    }
  }

  function lose() {
    lost = true;
    say("The connection to allranks ui is lost. This page is not current. Trying again.");
  }

  function open() {
    clearTimeout(retry);
    if (source) source.close();
    source = new EventSource(stream);
    source.onopen = () => {
      // Whatever has changed meanwhile is not sent again.
      if (lost) {
        lost = false;
        refresh();
      }
    };
    for (const kind of ["added", "changed", "deleted", "status"]) source.addEventListener(kind, refresh);
    source.onerror = () => {
      lose();
      source.close();
      retry = setTimeout(() => {
        // Says whether the server is away, or is another one.
        refresh();
        open();
      }, RETRY_MS);
    };
  }

  function close() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }

  if (!stream) return;
  // Browsers allow six connections to a server: a hidden page holds none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else {
      open();
      refresh();
    }
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());
  function tick() {
    if (!document.hidden) refresh();
    later();
  }

  // A page that waits for something looks more often.
  function later() {
    setTimeout(tick, Number(document.getElementById("live").dataset.refresh) || REFRESH_MS);
  }

  later();
  if (!document.hidden) open();
})();
