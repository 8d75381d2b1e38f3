// Drawing at most once a frame: whoever changed says so, and is drawn before the next picture.

const waiting = new Set();
const settling = new Set();
let asked = false;

/** Have a function called before the next frame; asking twice is asking once. */
export function soon(draw) {
  waiting.add(draw);
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    const now = [...waiting];
    waiting.clear();
    for (const each of now) each();
    const last = [...settling];
    settling.clear();
    for (const each of last) each();
  });
}

/** Called while drawing: have a function called after all others, so that what it measures is laid out only once. */
export function afterwards(settle) {
  settling.add(settle);
}

/** Forget a function that waits: what it draws is gone. */
export function never(draw) {
  waiting.delete(draw);
  settling.delete(draw);
}
