#!/bin/sh
# Checks the dashboards against the types of Grafana, by hand: it needs node and npm and takes @grafana/schema (60 MB) from the registry.
#   deploy/grafana/check.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund @grafana/schema typescript
cat >plain.d.ts <<'TYPES'
import type { AnnotationQuery, Dashboard, VariableModel } from "@grafana/schema";
// Members of enums as they stand in JSON.
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
// What Grafana's Prometheus data source reads beyond the schema.
type Query = { expr?: string; step?: string; titleFormat?: string; textFormat?: string; tagKeys?: string };
export type Board = Partial<Omit<Plain<Dashboard>, "annotations" | "templating">> & {
  annotations?: { list: (Plain<AnnotationQuery> & Query)[] };
  templating?: { list: (Plain<VariableModel> & { definition?: string })[] };
};
TYPES
for file in "$here"/*.json; do
  {
    echo 'import type { Board } from "./plain.d.ts";'
    printf 'export default ('
    cat "$file"
    echo ') satisfies Board;'
  } >"$(basename "$file" .json).ts"
done
# One that is wrong has to be refused, or nothing was checked.
echo 'import type { Board } from "./plain.d.ts"; export default ({ refresh: 5 }) satisfies Board;' >wrong.ts
check() { npx tsc --noEmit --strict --skipLibCheck --module nodenext --moduleResolution nodenext --allowImportingTsExtensions "$@"; }
check denpexd-*.ts
if check wrong.ts >/dev/null; then
  echo "a wrong dashboard was accepted: the check is worth nothing" >&2
  exit 1
fi
echo "the dashboards are what @grafana/schema $(node -p 'require("@grafana/schema/package.json").version') expects"
