// Drawing at most once a frame: whoever changed says so, and is drawn before the next picture.

const waiting = new Set();
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
  });
}

/** Forget a function that waits: what it draws is gone. */
export function never(draw) {
  waiting.delete(draw);
}
