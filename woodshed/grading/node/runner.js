// Runs inside the box: the tests of one file, one framed line per test on descriptor 3. The request is read from stdin
// before any other code is loaded, and a line counts only with its nonce, which no code outside this closure can see.
const main = async () => {
  const fs = require("fs");
  const { pathToFileURL } = require("url");
  const { inspect, stripVTControlCharacters } = require("util");
  const { createRequire } = require("module");
  const { stringify, parse } = JSON;
  const { write } = { write: fs.writeSync };
  const { now } = performance;
  const clock = now.bind(performance);
  const { from } = Buffer;
  const request = parse(fs.readFileSync(0, "utf8"));
  const { nonce } = request;
  const leave = process.reallyExit.bind(process);
  const seen = new Map();
  const count = (title) => {
    const number = (mapGet(seen, title) || 0) + 1;
    mapSet(seen, title, number);
    return number > 1 ? `${title} (${number})` : title;
  };
  const mapGet = Function.prototype.call.bind(Map.prototype.get);
  const mapSet = Function.prototype.call.bind(Map.prototype.set);
  let failed = false;
  let collected = 0;
  let begun = clock();

  const emit = (record) => {
    const data = from(`\n${nonce} ${stringify(record)}\n`);
    for (let at = 0; at < data.length; ) at += write(3, data, at);
  };
  const end = () => {
    const status = failed ? 1 : 0;
    emit({ end: status, collected });
    leave(status); // nothing of the submission runs after the last line
  };
  const short = (text, most) => (text.length > most ? text.slice(0, most) : text);
  const reason = (error) => {
    try {
      const name = error && typeof error.message === "string" ? error.name : "";
      const text = name ? `${name}: ${error.message}` : `threw ${inspect(error)}`;
      return short(stripVTControlCharacters(text), 2000);
    } catch {
      return "failed (its message cannot be shown)";
    }
  };
  const show = (value) => {
    try {
      return short(inspect(value, { depth: 4, breakLength: Infinity }), 300);
    } catch {
      return "?";
    }
  };

  let session = null;
  const post = (method, parameters) => {
    let answer;
    session.post(method, parameters, (error, result) => (answer = result));
    return answer;
  };
  if (request.trace.length) {
    const { Session } = require("inspector");
    session = new Session();
    session.connect();
    post("Profiler.enable");
    post("Profiler.startPreciseCoverage", { callCount: true, detailed: false });
  }
  const covered = () => {
    const found = [];
    for (const script of post("Profiler.takePreciseCoverage").result) {
      if (!script.url.startsWith("file:") ) continue;
      const path = decodeURIComponent(script.url.slice(7));
      if (!request.trace.some((root) => path === root || path.startsWith(root + "/"))) continue;
      for (const { ranges: [range], functionName } of script.functions) {
        if (range.count) found.push([path, `${range.startOffset}:${range.endOffset}`, functionName ? 1 : 0]);
      }
    }
    return found;
  };

  const run = {
    file: request.file,
    ui: request.ui,
    testTimeout: request.test_timeout,
    require: createRequire(request.file),
    reason,
    show,
    load: (file) => import(pathToFileURL(file).href),
    idle: () => new Promise((resolve) => process.once("beforeExit", resolve)),
    begin: () => {
      begun = clock();
    },
    // Called when the framework is loaded and no code under test is.
    ready: (modules) => {
      for (const name of [...modules, ...request.assertions]) {
        try {
          guard.module(run.require(name), name);
        } catch {
          continue; // not installed: its tests will say so
        }
      }
      for (const id of Object.keys(require.cache)) guard.module(require.cache[id].exports, id);
      for (const name of ["assert", "assert/strict"]) guard.module(require(name), name);
      guard.lock(require);
      if (request.values) {
        globalThis.woodshed_seen = values.see;
        globalThis.woodshed_truth = values.truth;
        globalThis.woodshed_step = values.step;
      }
    },
    result: (titles, status, text) => {
      let name = titles[0];
      for (let i = 1; i < titles.length; i++) name += ` > ${titles[i]}`;
      const changed = guard.changed();
      if (changed) {
        status = "error";
        text = `what decides results was changed: ${changed}`;
      }
      if (status === "failed" || status === "error") failed = true;
      collected += 1;
      const test = count(`${request.name}::${name.replaceAll("\n", " ")}`);
      const record = { test, status, seconds: (clock() - begun) / 1000 };
      if (text) record.text = text;
      if (request.values) record.seen = values.take();
      if (session) record.covered = covered();
      emit(record);
      begun = clock();
    },
  };
  const broken = (error) => {
    failed = true;
    emit({ collect: request.name, text: reason(error) });
    end();
  };
  process.on("uncaughtException", broken);
  process.on("unhandledRejection", broken);
  try {
    await frameworks[request.framework](run);
    end();
  } catch (error) {
    broken(error);
  }
};
main();
