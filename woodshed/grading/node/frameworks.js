// One function for each test framework: runs the tests of one file by the framework's own means and tells of each.
// `run.begin()` before a test, `run.result(titles, status, text)` after it; the promise resolves after the last one.
const frameworks = {
  async mocha(run) {
    const found = run.require("mocha");
    const Mocha = found.default ?? found;
    const shown = (runnable) => runnable.titlePath();
    const mocha = new Mocha({ ui: run.ui, timeout: run.testTimeout * 1000, reporter: function Silent() {} });
    mocha.addFile(run.file);
    run.ready(["mocha"]);
    await mocha.loadFilesAsync();
    await new Promise((resolve) => {
      const runner = mocha.run(resolve);
      runner.on("test", () => run.begin());
      runner.on("pass", (test) => run.result(shown(test), "passed"));
      runner.on("pending", (test) => run.result(shown(test), "skipped"));
      runner.on("fail", (test, error) => {
        const status = test.type === "hook" ? "error" : "failed";
        run.result(shown(test.type === "hook" && test.ctx.currentTest ? test.ctx.currentTest : test), status,
          run.reason(error));
      });
    });
  },

  async tape(run) {
    const tape = run.require("tape");
    const { prototype } = run.require("tape/lib/test");
    const start = prototype.run;
    const inner = new WeakSet();
    let running;
    const follow = (test, own) => {
      test.on("result", (result) => {
        if (typeof result === "string" || result.ok || result.todo || result.skip || own.why) return;
        const compared = "expected" in result && "actual" in result && result.operator !== "fail";
        own.why = String(result.name);
        if (compared) own.why += `: expected ${run.show(result.expected)}, got ${run.show(result.actual)}`;
      });
      test.on("test", (below) => {
        inner.add(below);
        follow(below, own);
      });
    };
    prototype.run = function () {
      if (!inner.has(this)) {
        const own = (running = { name: this.name, why: "", skipped: Boolean(this._skip || this._todo) });
        follow(this, own);
        run.begin();
        this.once("end", () => {
          running = undefined;
          run.result([own.name], own.why ? "failed" : own.skipped ? "skipped" : "passed", own.why);
        });
      }
      // A callback that throws would end the process, and with it the tests after it.
      const callback = this._cb;
      this._cb = callback && function (t) {
        try {
          return callback.call(this, t);
        } catch (error) {
          t.fail(run.reason(error));
          if (!t.calledEnd) t.end();
        }
      };
      return start.call(this);
    };
    tape.wait(); // for every test to be defined
    tape.createStream().on("data", () => {});
    run.ready(["tape"]);
    await run.load(run.file);
    const done = new Promise((resolve) => tape.onFinish(resolve));
    tape.run();
    await Promise.race([done, run.idle()]);
    if (running) run.result([running.name], "failed", running.why || "the test never ends");
  },

  async "node:test"(run) {
    const titles = [];
    let finish;
    const ended = new Promise((resolve) => (finish = resolve));
    let started = false;
    const heard = (event) => {
      const { data } = event;
      if (!started) return;
      if (event.type === "test:start") {
        titles.length = data.nesting;
        titles.push(data.name);
      } else if (event.type === "test:pass" || event.type === "test:fail") {
        titles.length = data.nesting;
        const { error, type } = data.details;
        const text = error ? run.reason(error.cause && typeof error.cause === "object" ? error.cause : error) : "";
        const skipped = data.skip !== undefined || data.todo !== undefined;
        const status = skipped ? "skipped" : event.type === "test:pass" ? "passed" : "failed";
        if (type !== "suite" || status === "failed") run.result([...titles, data.name], status, text);
      } else if (event.type === "test:plan" && data.nesting === 0) {
        finish();
      }
    };
    // The reporter (see run.py) is a module of its own: it takes this and leaves nothing behind.
    globalThis.woodshed_reporter = heard;
    const test = run.require("node:test");
    await test("", () => {});
    if (globalThis.woodshed_reporter !== undefined) throw new Error("the reporter was not loaded");
    await new Promise(setImmediate);
    started = true;
    run.ready(["node:test"]);
    run.begin();
    await run.load(run.file);
    await ended;
  },
};
