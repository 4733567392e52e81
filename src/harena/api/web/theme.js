// Applies the chosen theme before the first paint. Without a choice, the system's theme is used.
"use strict";

(() => {
  const KEY = "harena.theme";
  const order = ["auto", "light", "dark"];
  const root = document.documentElement;

  function stored() {
    try {
      const name = localStorage.getItem(KEY);
      return order.includes(name) ? name : "auto";
    } catch {
      return "auto"; // storage is off: nothing is kept
    }
  }

  function apply(name) {
    if (name === "auto") delete root.dataset.theme;
    else root.dataset.theme = name;
  }

  function wire() {
    const button = document.getElementById("theme");
    let name = stored();
    const show = () => {
      button.textContent = `Theme: ${name}`;
    };
    button.addEventListener("click", () => {
      name = order[(order.indexOf(name) + 1) % order.length];
      try {
        localStorage.setItem(KEY, name);
      } catch {
        // storage is off: the choice lasts until the page is left
      }
      apply(name);
      show();
    });
    show();
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", wire);
})();
