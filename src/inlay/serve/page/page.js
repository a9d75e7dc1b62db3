// What has to happen in the browser itself. Everything else is decided on the server.
window.inlay = {
  // Once, when the page is there.
  start() {
    this.follow();
    this.focus();
    const who = this.remembered("inlay-who");
    if (who !== null) emitEvent("who", who);
    if (document.hidden) emitEvent("visible", false);
  },

  remembered(key) {
    try {
      return JSON.parse(localStorage.getItem(key));
    } catch {
      return null;
    }
  },

  // Who answers, by number in both lists; kept by name, as other models may be served next time.
  chosen(numbers, both) {
    const lists = document.querySelectorAll(".choice");
    numbers.forEach((number, at) => { lists[at].value = number; });
    const names = numbers.map((number) => lists[0].options[number].text);
    localStorage.setItem("inlay-who", JSON.stringify([...names, both]));
    document.body.classList.toggle("two", both);
  },

  composer: () => document.getElementById("composer"),
  isBusy: () => document.body.dataset.busy === "1",

  // Takes the text out of the composer; null when there is nothing to send now.
  take() {
    const field = this.composer();
    const text = field.value.trim();
    if (!text || this.isBusy()) return null;
    field.value = "";
    this.grow(field);
    return text;
  },

  grow(field) {
    field.style.height = "auto";
    field.style.height = Math.min(field.scrollHeight, 220) + "px";
  },

  focus() {
    if (matchMedia("(hover: hover)").matches) this.composer()?.focus();
  },

  setDark(dark) {
    Quasar.Dark.set(dark);
    document.querySelector("meta[name=color-scheme]").content = dark ? "dark" : "light";
    document.querySelector("meta[name=theme-color]").content = dark ? "#171614" : "#faf8f4";
  },

  toggleDark() {
    const dark = !document.body.classList.contains("body--dark");
    localStorage.setItem("inlay-dark", dark ? "1" : "0");
    this.setDark(dark);
  },

  async copy(text, from) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without TLS there is no clipboard: fall back to a selection.
      const field = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    from?.classList.add("done");
    setTimeout(() => from?.classList.remove("done"), 1200);
  },

  // Keeps the newest line in view, unless the reader has scrolled up.
  follow() {
    const thread = document.getElementById("thread");
    if (!thread) return setTimeout(() => this.follow(), 50);
    let stuck = true;
    thread.addEventListener("scroll", () => {
      stuck = thread.scrollHeight - thread.scrollTop - thread.clientHeight < 80;
    });
    new MutationObserver(() => {
      if (stuck) thread.scrollTop = thread.scrollHeight;
    }).observe(thread, { childList: true, subtree: true, characterData: true });
  },

  toEnd() {
    const thread = document.getElementById("thread");
    setTimeout(() => thread.scrollTo({ top: thread.scrollHeight }), 30);
  },
};

addEventListener("load", () => {
  const chosen = localStorage.getItem("inlay-dark");
  if (chosen !== null) inlay.setDark(chosen === "1");
});
document.addEventListener("keydown", (e) => {
  const inDrawer = document.querySelector(".drawer.open") !== null;
  if (e.key === "Escape" && !e.isComposing && !inDrawer && inlay.isBusy()) emitEvent("stop");
});
document.addEventListener("visibilitychange", () => {
  emitEvent("visible", document.visibilityState === "visible");
});
