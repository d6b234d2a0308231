// The page of a run that goes on: each event has the page anew. What the reader chose stays.
(() => {
  let listening = new AbortController();
  startPage(listening.signal);
  const source = new EventSource("events");

  const enlargers = () => [...document.querySelectorAll(".enlarge")];
  const enlarged = () => enlargers().map((button) => button.getAttribute("aria-pressed") === "true");

  source.addEventListener("page", (event) => {
    const made = new DOMParser().parseFromString(JSON.parse(event.data), "text/html");
    const { value, selectionStart, selectionEnd } = document.getElementById("filter");
    const depth = document.getElementById("depth").value;
    const typing = document.activeElement === document.getElementById("filter");
    const [large, left, top] = [enlarged(), scrollX, scrollY];
    listening.abort();
    listening = new AbortController();
    document.body.replaceWith(made.body);
    startPage(listening.signal);
    const filter = document.getElementById("filter");
    filter.value = value;
    document.getElementById("depth").value = depth;
    filter.dispatchEvent(new Event("input"));
    enlargers().forEach((button, i) => large[i] && button.click());
    if (typing) {
      filter.focus({ preventScroll: true });
      filter.setSelectionRange(selectionStart, selectionEnd);
    }
    scrollTo(left, top);
  });
  // Otherwise the browser would ask again.
  source.addEventListener("ended", () => source.close());
})();
