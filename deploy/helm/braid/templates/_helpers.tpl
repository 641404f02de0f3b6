{{- define "braid.name" -}}
{{- if contains "braid" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-braid{{ end -}}
{{- end -}}

{{- define "braid.selector" -}}
app.kubernetes.io/name: braid
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "braid.labels" -}}
{{ include "braid.selector" . }}
app.kubernetes.io/part-of: braid
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* What a probe asks: gRPC's health service, or with TLS, which kubelet's gRPC lacks, the HTTP port. */}}
{{- define "braid.probe" -}}
{{- if .root.Values.tls.secret -}}
httpGet: {path: {{ eq .service "liveness" | ternary "/healthz" "/readyz" }}, port: http, scheme: HTTPS}
{{- else if .service -}}
grpc: {port: 8001, service: {{ .service }}}
{{- else -}}
grpc: {port: 8001}
{{- end }}
{{- with .timing }}
{{ toYaml . }}
{{- end }}
{{- end -}}
