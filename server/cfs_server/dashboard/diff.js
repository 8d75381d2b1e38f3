// The difference of two texts, line by line.

const MOST = 1500; // lines on a side that are compared one by one

/** Lines as `{ sign, text }`, the sign being " ", "-" or "+". */
export function difference(before, after) {
  const old = lines(before);
  const fresh = lines(after);
  let start = 0;
  while (start < old.length && start < fresh.length && old[start] === fresh[start]) start++;
  let end = 0;
  while (end < old.length - start && end < fresh.length - start && old.at(-1 - end) === fresh.at(-1 - end)) end++;
  return [
    ...signed(" ", old.slice(0, start)),
    ...middle(old.slice(start, old.length - end), fresh.slice(start, fresh.length - end)),
    ...signed(" ", old.slice(old.length - end)),
  ];
}

/** The same with the lines that are far from any change left out. */
export function nearby(found, around = 3) {
  const kept = new Set();
  found.forEach(({ sign }, index) => {
    if (sign === " ") return;
    for (let near = index - around; near <= index + around; near++) kept.add(near);
  });
  const shown = [];
  found.forEach((line, index) => {
    if (kept.has(index)) shown.push(line);
    else if (shown.length && shown.at(-1).sign !== "…") shown.push({ sign: "…", text: "" });
  });
  return shown;
}

/** The longest common sequence, by the table of its lengths. */
function middle(old, fresh) {
  if (old.length > MOST || fresh.length > MOST) return [...signed("-", old), ...signed("+", fresh)];
  const width = fresh.length + 1;
  const table = new Uint16Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = fresh.length - 1; j >= 0; j--) {
      table[i * width + j] = old[i] === fresh[j]
        ? table[(i + 1) * width + j + 1] + 1
        : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const found = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < fresh.length) {
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) found.push({ sign: " ", text: old[i++] }), j++;
    else if (j >= fresh.length || (i < old.length && table[(i + 1) * width + j] >= table[i * width + j + 1])) {
      found.push({ sign: "-", text: old[i++] });
    } else found.push({ sign: "+", text: fresh[j++] });
  }
  return found;
}

function lines(text) {
  if (text === "") return [];
  return (text.endsWith("\n") ? text.slice(0, -1) : text).split("\n");
}

function signed(sign, texts) {
  return texts.map((text) => ({ sign, text }));
}
