// The values that altered tests note, as text that is the same for equal values.
const values = (() => {
  const { apply, ownKeys, getOwnPropertyDescriptor, getPrototypeOf } = Reflect;
  const { stringify } = JSON;
  const { isArray, prototype: { sort, join, push } } = Array;
  const { toString } = Object.prototype;
  const { replace } = String.prototype;
  const toPrecision = Number.prototype.toPrecision;
  const text = String;
  const list = [];
  const LIMIT = 4096;

  const number = (value) => {
    if (Object.is(value, -0)) return "-0";
    return Number.isSafeInteger(value) ? text(value) : `f${apply(toPrecision, value, [9])}`;
  };
  const encode = (value, path, budget) => {
    if (budget.left-- <= 0) throw new RangeError("too large");
    switch (typeof value) {
      case "number": return number(value);
      case "string": return stringify(value);
      case "bigint": return `${value}n`;
      case "function": return "?";
      case "symbol": return text(value);
      case "object": break;
      default: return text(value); // undefined, true, false
    }
    if (value === null) return "null";
    if (path.length > 32) throw new RangeError("too deep");
    for (let i = 0; i < path.length; i++) if (path[i] === value) return `cycle${path.length - i}`;
    const inner = [...path, value];
    const tag = apply(toString, value, []);
    if (tag === "[object Date]") return `date ${+value}`;
    if (tag === "[object RegExp]") return `regexp ${text(value)}`;
    if (value instanceof Error) return `error ${text(value.name)} ${text(value.message)}`;
    if (tag === "[object Map]" || tag === "[object Set]") return tag + encode([...value], inner, budget);
    const parts = [];
    if (isArray(value)) {
      for (let i = 0; i < value.length; i++) apply(push, parts, [encode(value[i], inner, budget)]);
      return `[${apply(join, parts, [","])}]`;
    }
    const keys = ownKeys(value);
    for (let i = 0; i < keys.length; i++) {
      const found = getOwnPropertyDescriptor(value, keys[i]);
      if (found && found.enumerable) {
        apply(push, parts, [`${stringify(text(keys[i]))}:${encode(value[keys[i]], inner, budget)}`]);
      }
    }
    const made = getPrototypeOf(value);
    const kind = made === null || made === Object.prototype ? "" : tag;
    return `${kind}{${apply(join, apply(sort, parts, []), [","])}}`;
  };
  const shown = (value) => {
    let found;
    try {
      found = encode(value, [], { left: 2000 });
    } catch {
      found = "?";
    }
    return found.length > LIMIT ? "?" : found;
  };
  const see = (...seen) => {
    for (let i = 0; i < seen.length && list.length < 400; i++) apply(push, list, [shown(seen[i])]);
    return true;
  };
  // A value of which the test only asks whether it is true.
  const truth = (...seen) => {
    for (let i = 0; i < seen.length && list.length < 400; i++) {
      const text = shown(seen[i]), asked = seen[i] ? "true" : "false";
      apply(push, list, [text === "?" || text === asked ? asked : `${asked}=${text}`]);
    }
    return true;
  };
  // What a call gives to another one: data is noted, and how an own object keeps its own is not.
  const data = (value, depth) => {
    if (value === null || (typeof value !== "object" && typeof value !== "function")) return true;
    if (depth > 24 || typeof value === "function") return false;
    const made = getPrototypeOf(value);
    if (!isArray(value) && made !== null && made !== Object.prototype) return false;
    const keys = ownKeys(value);
    if (keys.length > 2000) return false;
    for (let i = 0; i < keys.length; i++) {
      const found = getOwnPropertyDescriptor(value, keys[i]);
      if (found && found.enumerable && !data(found.value, depth + 1)) return false;
    }
    return true;
  };
  const step = (value) => {
    let known = false;
    try {
      known = data(value, 0);
    } catch {}
    if (known) see(value);
    else if (list.length < 400) apply(push, list, ["?"]);
    return value;
  };
  // What was noted since the last call.
  const take = () => {
    const taken = [];
    for (let i = 0; i < list.length; i++) apply(push, taken, [list[i]]);
    list.length = 0;
    return taken;
  };
  return { see, truth, step, take };
})();
