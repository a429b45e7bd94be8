// Applies the chosen colours before anything is drawn.
"use strict";
try {
  const chosen = localStorage.getItem("millstream-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage the system's colours apply.
}
