// Draws the figures of the report. They are data in the page itself; colours that depend on light and dark are set here,
// from the same variables as the rest of the page.
"use strict";

(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // The buttons are listed: by default there is one that sends the figures to the makers of the library.
  const config = {
    displaylogo: false,
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
    plotlyServerURL: "",
    responsive: true,
    showSendToCloud: false,
  };

  const themed = (layout) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const result = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...layout.font, color: colour("--text"), family: "system-ui, sans-serif", size: 13 },
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text") }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--dim"), activecolor: colour("--text") },
    };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        result[key] = { gridcolor: colour("--grid"), linecolor: colour("--line"), zerolinecolor: colour("--line"), ...layout[key] };
      }
    }
    return result;
  };

  const draw = () => {
    figures.forEach((figure, index) => {
      Plotly.react(`chart-${index}`, figure.data, themed(figure.layout), config);
    });
  };

  draw();
  dark.addEventListener("change", draw);
  document.documentElement.dataset.drawn = String(figures.length);
})();
