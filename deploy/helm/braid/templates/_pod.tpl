{{/* The pod of the StatefulSet, and of the fleet's Deployment. */}}
{{- define "braid.pod" -}}
{{- $name := include "braid.name" . }}
{{- $values := .Values }}
{{- $secrets := list }}
{{- range $role, $secret := dict "admin" .Values.tokens.adminSecret "infer" .Values.tokens.inferSecret "metrics" .Values.tokens.metricsSecret }}
{{- if $secret }}
{{- $secrets = append $secrets (dict "volume" (printf "%s-token" $role) "secret" $secret "path" (eq $role "admin" | ternary "/run/secrets/braid" (printf "/run/secrets/braid-%s" $role)) "name" (printf "BRAID_%s_TOKEN_FILE" (upper $role))) }}
{{- end }}
{{- end }}
{{- $resources := deepCopy .Values.resources }}
{{- $tolerations := .Values.tolerations }}
{{- if .Values.gpu.enabled }}
{{- $_ := set $resources "limits" (merge (dict .Values.gpu.resource 1) (default dict $resources.limits)) }}
{{- $tolerations = append $tolerations (dict "key" .Values.gpu.resource "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
metadata:
  labels:
    {{- include "braid.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations: # a changed setting starts new pods
    checksum/settings: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ $name }}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ include "braid.grace" . }}
  {{- with .Values.affinity | default (.Values.fleet.enabled | ternary (include "braid.apart" . | fromYaml) dict) }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- range $key := list "imagePullSecrets" "nodeSelector" "topologySpreadConstraints" "priorityClassName" }}
  {{- with index $values $key }}
  {{ $key }}: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with $tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: braid
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: {{- toYaml (prepend .Values.extraArgs "serve") | nindent 8 }}
      envFrom:
        - configMapRef: {name: {{ $name }}-settings}
        {{- if and .Values.fleet.enabled .Values.fleet.filesSecret }}
        - secretRef: {name: {{ .Values.fleet.filesSecret }}}
        {{- end }}
      env:
        {{- range $secrets }}
        - name: {{ .name }}
          value: {{ .path }}/token
        {{- end }}
        {{- if .Values.tls.secret }}
        - name: BRAID_TLS_CERTIFICATE
          value: /run/secrets/braid-tls/tls.crt
        - name: BRAID_TLS_KEY
          value: /run/secrets/braid-tls/tls.key
        {{- end }}
        {{- if .Values.tls.clientCaSecret }}
        - name: BRAID_TLS_CLIENT_CA
          value: /run/secrets/braid-client-ca/ca.crt
        {{- end }}
        {{- if .Values.fleet.enabled }}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - name: BRAID_NODE_ADDRESS
          value: $(POD_IP):8001
        {{- if .Values.fleet.databaseSecret }}
        - name: BRAID_DATABASE_PASSWORD_FILE
          value: /run/secrets/braid-database/password
        {{- end }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: 8001}
        - {name: http, containerPort: 8002}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources: {{- toYaml $resources | nindent 8 }}
      # Models of the store are loaded before the server is ready, which may take a while.
      startupProbe: {{- include "braid.probe" (dict "root" . "service" "liveness" "timing" .Values.probes.startup) | nindent 8 }}
      livenessProbe: {{- include "braid.probe" (dict "root" . "service" "liveness" "timing" .Values.probes.liveness) | nindent 8 }}
      readinessProbe: {{- include "braid.probe" (dict "root" . "service" "" "timing" .Values.probes.readiness) | nindent 8 }}
      volumeMounts:
        - {name: store, mountPath: /var/lib/braid}
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        {{- range $secrets }}
        - {name: {{ .volume }}, mountPath: {{ .path }}, readOnly: true}
        {{- end }}
        {{- if .Values.tls.secret }}
        - {name: tls, mountPath: /run/secrets/braid-tls, readOnly: true}
        {{- end }}
        {{- if .Values.tls.clientCaSecret }}
        - {name: client-ca, mountPath: /run/secrets/braid-client-ca, readOnly: true}
        {{- end }}
        {{- if and .Values.fleet.enabled .Values.fleet.databaseSecret }}
        - {name: database, mountPath: /run/secrets/braid-database, readOnly: true}
        {{- end }}
        {{- with .Values.modelRepository }}
        {{- if .claim }}
        - {name: models, mountPath: /models, subPath: {{ .subPath | quote }}, readOnly: true}
        {{- end }}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: {{ .Values.tmpSize }}}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemorySize }}}
    {{- range $secrets }}
    - name: {{ .volume }}
      secret: {secretName: {{ .secret }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.tls.secret }}
    - name: tls
      secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.tls.clientCaSecret }}
    - name: client-ca
      secret: {secretName: {{ .Values.tls.clientCaSecret }}, defaultMode: 0440}
    {{- end }}
    {{- if and .Values.fleet.enabled .Values.fleet.databaseSecret }}
    - name: database
      secret: {secretName: {{ .Values.fleet.databaseSecret }}, defaultMode: 0440}
    {{- end }}
    {{- with .Values.modelRepository.claim }}
    - name: models
      persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
    {{- end }}
    {{- if .Values.fleet.enabled }}
    - name: store # a cache of what the fleet shares
      emptyDir: {sizeLimit: {{ .Values.fleet.cacheSize }}}
    {{- else if not .Values.persistence.enabled }}
    - name: store
      emptyDir: {sizeLimit: {{ .Values.persistence.size }}}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
