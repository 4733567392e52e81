// Applies the chosen theme before the first paint. Without a choice, the system's theme is used.
"use strict";

(() => {
  const KEY = "harena.theme";
  const order = ["system", "light", "dark"];
  const root = document.documentElement;

  function stored() {
    try {
      const name = localStorage.getItem(KEY);
      return order.includes(name) ? name : "system";
    } catch {
      return "system"; // storage is off: nothing is kept
    }
  }

  function apply(name) {
    if (name === "system") delete root.dataset.theme;
    else root.dataset.theme = name;
  }

  function wire() {
    const button = document.getElementById("theme");
    let name = stored();
    const show = () => {
      button.textContent = { system: "Auto", light: "Light", dark: "Dark" }[name];
      button.setAttribute("aria-label", `Theme: ${name === "system" ? "same as the system" : name}. Change`);
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
