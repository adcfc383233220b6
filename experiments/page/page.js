// Sorting: every header of a table.sortable becomes a button. Numbers sort downwards first, empty values go last.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const values = new Map([...body.rows].map((row) => [row, row.cells[column].dataset.v]));
      const numeric = [...values.values()].every((value) => value === "" || !Number.isNaN(Number(value)));
      const before = head.getAttribute("aria-sort");
      const up = before ? before === "descending" : !numeric;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [values.get(a), values.get(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = numeric ? Number(x) - Number(y) : x.localeCompare(y);
        return up ? order : -order;
      });
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...rows);
    });
  });
}
