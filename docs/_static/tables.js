// Names the column of each cell, for windows so narrow that the cells of a row stand below each other.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".bd-article table.table, .bd-article table.dataframe")) {
    const lines = [...(table.tHead?.rows ?? [])].map((row) => [...row.cells].map((cell) => cell.innerText.trim()));
    if (!lines.length) continue;

    // In a line above the headings, the name of a group stands over the first of its columns.
    const groups = lines.length > 1 ? lines[0] : [];
    groups.forEach((name, column) => (groups[column] = name || groups[column - 1] || ""));

    table.classList.add("labelled");
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, column) => {
        cell.dataset.column = [groups[column], lines.at(-1)[column]].filter(Boolean).join(": ");
      });
  }
});
