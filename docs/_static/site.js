// What Furo leaves out for readers who use the keyboard or a screen reader.
const label = (selector, name) => document.querySelectorAll(selector).forEach((node) => node.setAttribute("aria-label", name));
function makeScrollable() { // what scrolls sideways can be reached by Tab
  for (const region of document.querySelectorAll("pre, .table-wrapper, .sidebar-scroll, .toc-scroll")) {
    if (region.scrollWidth > region.clientWidth || region.scrollHeight > region.clientHeight) region.tabIndex = 0;
  }
}
document.addEventListener("DOMContentLoaded", () => {
  label(".sidebar-drawer", "Pages");
  label(".toc-drawer", "On this page");
  document.querySelectorAll(".caption[role=heading]").forEach((caption) => caption.setAttribute("aria-level", "2"));
  makeScrollable();
  window.addEventListener("resize", makeScrollable);
});
