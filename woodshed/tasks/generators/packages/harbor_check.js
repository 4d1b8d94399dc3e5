// What tests/test.sh of a task runs for tools that know nothing of Woodshed: whether each required test passed.
// A copy lies in the task's tests folder, with required.json and the runner of Woodshed's grader, runner.js.
"use strict";

const { createHash, randomBytes } = require("crypto");
const { spawnSync } = require("child_process");
const fs = require("fs");
const path = require("path");

const REWARD = "/logs/verifier/reward.txt";

// Removes links, modules that the task does not bring, and files that would configure the run, unless it began so.
const clean = (folder, asked) => {
  for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
    const file = path.join(folder, entry.name);
    if (entry.isSymbolicLink() || (entry.isDirectory() && entry.name === "node_modules")) {
      fs.rmSync(file, { recursive: true });
    } else if (entry.isDirectory()) {
      clean(file, asked);
    } else if (asked.stray.includes(entry.name) || asked.suffixes.some((suffix) => entry.name.endsWith(suffix))) {
      // what is no file, a pipe say, is not read: that would never end
      const digest = entry.isFile() && createHash("sha256").update(fs.readFileSync(file)).digest("hex");
      if (asked.kept[path.relative(asked.workdir, file)] !== digest) fs.rmSync(file);
    }
  }
};

// The status of each test of a file, or of none where the file did not run to its end.
const run = (request, asked, timeout) => {
  const nonce = randomBytes(16).toString("hex");
  const options = request.framework === "node:test" ? ["--test-reporter", asked.reporter] : [];
  const runner = fs.readFileSync(path.join(__dirname, "runner.js"), "utf8");
  const done = spawnSync(process.execPath, ["--no-warnings", ...options, "-e", runner], {
    cwd: asked.workdir, input: JSON.stringify({ ...request, nonce }), stdio: ["pipe", "ignore", "inherit", "pipe"],
    timeout, killSignal: "SIGKILL", maxBuffer: 1 << 26,
  });
  const found = new Map();
  for (const line of String(done.output ? done.output[3] : "").split("\n")) {
    if (!line.startsWith(`${nonce} `)) continue;
    const record = JSON.parse(line.slice(nonce.length + 1));
    if ("end" in record) return record.end === done.status ? found : new Map();
    if (record.test && (found.get(record.test) ?? "passed") === "passed") found.set(record.test, record.status);
  }
  console.log(`${request.name}: the run ended early with status ${done.status ?? done.signal}`);
  return new Map();
};

const asked = JSON.parse(fs.readFileSync(path.join(__dirname, "required.json"), "utf8"));
fs.mkdirSync(path.dirname(REWARD), { recursive: true });
fs.writeFileSync(REWARD, "0\n"); // whatever goes wrong from here on
clean(asked.workdir, asked);
fs.cpSync(path.join(__dirname, "workspace"), asked.workdir, { recursive: true });
const begun = Date.now();
const status = new Map();
for (const request of asked.files) {
  const left = asked.timeout * 1000 - (Date.now() - begun);
  if (left <= 0) break;
  for (const [test, found] of run(request, asked, left)) status.set(test, found);
}
const missed = asked.ids.filter((test) => status.get(test) !== "passed");
for (const test of missed) console.log(`${test}: ${status.get(test) ?? "missing"}`);
console.log(`${asked.ids.length - missed.length} of ${asked.ids.length} required tests passed`);
fs.writeFileSync(REWARD, missed.length ? "0\n" : "1\n");
