// What code under test could reach for in its own process: a check that nothing which decides results was changed,
// and the removal of built-in functions that see or start more than code under test needs.
const guard = (() => {
  const { apply, getOwnPropertyDescriptor, ownKeys, getPrototypeOf } = Reflect;
  const { push } = Array.prototype;
  const objects = new Set();
  const hasObject = apply.bind(null, objects.has, objects);
  const addObject = apply.bind(null, objects.add, objects);
  const watched = [];
  const counted = [];

  const isObject = (value) => (typeof value === "object" && value !== null) || typeof value === "function";

  // Notes the functions and accessors of an object; `grow` also forbids properties that it has not now.
  const note = (object, name, grow) => {
    if (!isObject(object) || hasObject([object])) return;
    addObject([object]);
    const keys = ownKeys(object);
    if (!grow) apply(push, counted, [[object, name, keys.length]]);
    for (let i = 0; i < keys.length; i++) {
      const found = getOwnPropertyDescriptor(object, keys[i]);
      const value = "value" in found ? found.value : found.get;
      if (typeof value === "function") apply(push, watched, [[object, keys[i], value, `${name}.${String(keys[i])}`]]);
    }
  };

  const INTRINSICS = (
    "Object Function Array String Number Boolean Symbol BigInt Error TypeError RangeError SyntaxError RegExp Date Map " +
    "Set WeakMap WeakSet WeakRef Promise Proxy Reflect JSON Math ArrayBuffer DataView Uint8Array Buffer"
  ).split(" ");
  for (const name of INTRINSICS) {
    note(globalThis[name], name, true);
    if (globalThis[name].prototype) note(globalThis[name].prototype, `${name}.prototype`, false);
  }
  note(getPrototypeOf([][Symbol.iterator]()), "ArrayIterator", false);
  note(getPrototypeOf(async () => {}), "AsyncFunction", false);
  for (const name of INTRINSICS) {
    const found = getOwnPropertyDescriptor(globalThis, name);
    apply(push, watched, [[globalThis, name, found.get || found.value, name]]);
  }

  // The exports of a module, and what is in them and their classes to a depth of two.
  const module = (exports, name, depth = 2) => {
    if (!isObject(exports) || hasObject([exports])) return;
    note(exports, name, true);
    if (depth === 0) return;
    for (const key of ownKeys(exports)) {
      const found = getOwnPropertyDescriptor(exports, key);
      if ("value" in found) module(found.value, `${name}.${String(key)}`, depth - 1);
    }
  };

  // What has been changed since, or an empty string.
  const changed = () => {
    for (let i = 0; i < watched.length; i++) {
      const found = getOwnPropertyDescriptor(watched[i][0], watched[i][1]);
      const now = found && ("value" in found ? found.value : found.get);
      if (now !== watched[i][2]) return watched[i][3];
    }
    for (let i = 0; i < counted.length; i++) {
      if (ownKeys(counted[i][0]).length !== counted[i][2]) return counted[i][1];
    }
    return "";
  };

  // Functions of built-in modules that no code under test may use: they read closures and the heap, start processes
  // that hold the result channel, or end this one.
  const FORBIDDEN = {
    inspector: ["Session", "open", "url", "waitForDebugger", "close"],
    "inspector/promises": ["Session", "open", "url", "waitForDebugger"],
    v8: ["getHeapSnapshot", "writeHeapSnapshot", "setFlagsFromString", "queryObjects", "setHeapSnapshotNearHeapLimit"],
    worker_threads: ["Worker"],
    child_process: ["spawn", "spawnSync", "exec", "execSync", "execFile", "execFileSync", "fork", "_forkChild"],
    cluster: ["fork", "setupPrimary", "setupMaster"],
    vm: ["measureMemory"],
  };
  const FORBIDDEN_PROCESS = ["binding", "_linkedBinding", "dlopen", "reallyExit", "abort", "kill", "_kill", "execve",
    "_debugProcess", "_startProfilerIdleNotifier", "setUncaughtExceptionCaptureCallback", "_debugEnd"];

  const refuse = (name) => function () {
    throw new Error(`${name} is not available to code under test`);
  };
  const lock = (load) => {
    for (const name of Object.keys(FORBIDDEN)) {
      let exports;
      try {
        exports = load(name);
      } catch {
        continue; // not in this Node
      }
      for (const key of FORBIDDEN[name]) {
        if (key in exports) replace(exports, key, refuse(`${name}.${key}`));
      }
    }
    const { ChildProcess } = load("child_process");
    replace(ChildProcess.prototype, "spawn", refuse("ChildProcess.spawn"));
    for (const key of FORBIDDEN_PROCESS) if (key in process) replace(process, key, refuse(`process.${key}`));
    load("module").syncBuiltinESMExports();
  };
  const replace = (object, key, value) => {
    Object.defineProperty(object, key, { value, writable: false, configurable: false, enumerable: true });
  };
  return { module, changed, lock };
})();
