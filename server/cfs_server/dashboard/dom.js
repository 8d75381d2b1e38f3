// Elements, made of what they hold. Text is always text: nothing here reads markup.

/** Make an element: properties by name, `on...` as listeners, `data-`, `aria-` and `role` as attributes. */
export function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for a part of a picture. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role" || name === "for" || name === "list") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Change a text only where it is another one: an untouched node costs no layout. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute, or take it away for null; only where that changes something. */
export function mark(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

const kept = new WeakMap(); // an element that `arrange` made: its key

/**
 * Let an element have these children, each made of its key. One whose key was there before stays untouched: a button
 * that is made anew under a finger would not be pressed. All that stay keep their order.
 */
export function arrange(parent, parts) {
  const keys = new Set(parts.map(([key]) => key));
  for (const child of [...parent.children]) if (!keys.has(kept.get(child))) child.remove();
  let place = parent.firstElementChild;
  for (const [key, make] of parts) {
    if (place !== null && kept.get(place) === key) {
      place = place.nextElementSibling;
      continue;
    }
    const made = make();
    kept.set(made, key);
    parent.insertBefore(made, place);
  }
}

/** A button with a text. */
export function button(text, onclick, properties = {}) {
  return el("button", { type: "button", className: "button", onclick, ...properties }, text);
}
