// Grafana's libraries import a few names that its published packages do not export; those stay undefined.
export default {
  build: { target: "es2022", minify: false, sourcemap: false, rolldownOptions: { shimMissingExports: true } },
  define: { "process.env.NODE_ENV": '"production"', "process.env": "{}" },
};
